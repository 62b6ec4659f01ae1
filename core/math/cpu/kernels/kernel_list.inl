// The list of the vector loops that exist for each dtype and instruction set: TERRACE_KERNEL(result, name, parameters...). T is
// the storage type and A the arithmetic type (kernels.h). The other files here define them, as templates over T.

// One row of c elements, with gains offset + gain. `mean` null: RMSNorm. `bias` may be null. `square`, `product`: the means
// over the whole row, of which this call gets only some columns; null: the row is whole.
TERRACE_KERNEL(void, norm_row, T* y, A* mean, A* rstd, const T* x, const T* gain, const T* bias, std::int64_t c, double eps,
               A offset, const A* square)
TERRACE_KERNEL(void, norm_input_grad_row, T* dx, const T* dy, const T* x, const T* gain, const A* mean, A rstd, std::int64_t c,
               bool accumulate, A offset, const A* product)
// `gain` may be null
TERRACE_KERNEL(A, row_product, const T* a, const T* b, const T* gain, std::int64_t c, A offset)
// Sums of at most kColumns columns over `rows` rows, by blocks of kRowBlock rows that are folded in order. `dbias` and `mean`
// may be null. `rstd` may be null if `mean` is: then x is used without normalisation.
TERRACE_KERNEL(void, norm_weight_grad, A* dgain, A* dbias, const T* dy, const T* x, const A* mean, const A* rstd,
               std::int64_t rows, std::int64_t columns, std::int64_t row_elements)
TERRACE_KERNEL(void, column_sums, A* sums, const T* x, std::int64_t rows, std::int64_t columns, std::int64_t row_elements)
// One head: pairs (i, i + half); `sin` is negated to rotate back.
TERRACE_KERNEL(void, rotate, T* x, const A* cosine, const A* sine, std::int64_t half, bool inverse)
TERRACE_KERNEL(void, gelu, T* y, const T* x, std::int64_t n)
TERRACE_KERNEL(void, gelu_grad, T* dx, const T* dy, const T* x, std::int64_t n)
TERRACE_KERNEL(void, swiglu, T* y, const T* gate, const T* up, std::int64_t n)
TERRACE_KERNEL(void, swiglu_grad, T* dgate, T* dup, const T* dy, const T* gate, const T* up, std::int64_t n)
TERRACE_KERNEL(void, geglu, T* y, const T* gate, const T* up, std::int64_t n)
TERRACE_KERNEL(void, geglu_grad, T* dgate, T* dup, const T* dy, const T* gate, const T* up, std::int64_t n)
TERRACE_KERNEL(void, gelu_erf, T* y, const T* x, std::int64_t n)
TERRACE_KERNEL(void, gelu_erf_grad, T* dx, const T* dy, const T* x, std::int64_t n)
TERRACE_KERNEL(void, geglu_erf, T* y, const T* gate, const T* up, std::int64_t n)
TERRACE_KERNEL(void, geglu_erf_grad, T* dgate, T* dup, const T* dy, const T* gate, const T* up, std::int64_t n)
TERRACE_KERNEL(void, multiply, T* y, const T* x, std::int64_t n, A factor)
// y = cap · tanh(factor · x / cap); dx = dy · factor · (1 − (y / cap)²).
TERRACE_KERNEL(void, soft_cap, T* y, const T* x, std::int64_t n, A factor, A cap)
TERRACE_KERNEL(void, soft_cap_grad, T* dx, const T* dy, const T* y, std::int64_t n, A factor, A cap)
TERRACE_KERNEL(void, add, T* y, const T* x, const T* r, std::int64_t n)
TERRACE_KERNEL(void, scale, T* y, const T* x, const T* gain, std::int64_t n, bool accumulate)
TERRACE_KERNEL(A, dot, const T* x, const T* y, std::int64_t n)
// y += a·x
TERRACE_KERNEL(void, axpy, A* y, A a, const T* x, std::int64_t n)
// Loss of one row, and (softmax − onehot)·scale into dlogits (may be null, may be logits). target < 0: loss 0, gradient 0.
TERRACE_KERNEL(double, cross_entropy_row, T* dlogits, const T* logits, std::int64_t vocabulary, std::int32_t target,
               double scale)
TERRACE_KERNEL(A, log_sum_exp_row, const T* logits, std::int64_t columns)
// The same as cross_entropy_row for a part of the columns, with the whole row's log-sum-exp; +∞: gradient 0.
TERRACE_KERNEL(double, cross_entropy_part_row, T* dlogits, const T* logits, std::int64_t columns, std::int32_t target, A lse,
               double scale)
TERRACE_KERNEL(double, sum, const T* x, std::int64_t n)
TERRACE_KERNEL(double, sum_of_squares, const T* x, std::int64_t n)

#undef TERRACE_KERNEL
