// Addition, scaling, biases, conversion, zeros.
#pragma once

#include <terrace/core/cuda/kernels/elementwise.h>
#include <terrace/core/cuda/math/geometry.h>

namespace terrace::cuda::ops {

template <class Launcher>
struct Elementwise {
  static void add(const Launcher&, TensorView y, TensorView x, TensorView r);
  static void scale(const Launcher&, TensorView y, TensorView x, TensorView gain, Accumulate);
  // c[N,C] (+)= bias[C]; a matrix product then adds to it.
  static void add_bias(const Launcher&, TensorView c, TensorView bias, Accumulate);
  static void multiply(const Launcher&, TensorView y, TensorView x, double factor);
  static void soft_cap(const Launcher&, TensorView y, TensorView x, double cap);
  static void soft_cap_grad(const Launcher&, TensorView dx, TensorView dy, TensorView y, double cap);
  static void convert(const Launcher&, TensorView y, TensorView x, Accumulate);
  static void columns(const Launcher&, TensorView y, std::int64_t first_y, TensorView x, std::int64_t first_x,
                      std::int64_t count, Accumulate);
  static void zero(const Launcher&, TensorView y);
};

template <class Launcher>
void Elementwise<Launcher>::add(const Launcher& launcher, TensorView y, TensorView x, TensorView r) {
  with_type(y.dtype, [&]<class T>() {
    launcher.template run<Add<T>>(
        flat_shape<Add<T>>(y.elements(), kWidth<T>),
        AddArgs<T>{data<T>(y), data<T>(x), data<T>(r), y.elements(), whole_words(kWidth<T>, {y, x, r})});
  });
}

template <class Launcher>
void Elementwise<Launcher>::scale(const Launcher& launcher, TensorView y, TensorView x, TensorView gain,
                                  Accumulate accumulate) {
  with_type(y.dtype, [&]<class T>() {
    using Kernel = ScaleRows<T>;
    const std::int64_t columns = columns_of(y);
    launcher.template run<Kernel>(slice_shape<Kernel>(rows_of(y), columns),
                                  ScaleArgs<T>{data<T>(y), data<T>(x), data<T>(gain), columns, accumulate == Accumulate::yes,
                                               whole_words(columns, {y, x, gain})});
  });
}

template <class Launcher>
void Elementwise<Launcher>::add_bias(const Launcher& launcher, TensorView c, TensorView bias, Accumulate accumulate) {
  with_type(c.dtype, [&]<class T>() {
    with_type(bias.dtype, [&]<class Bias>() {
      if constexpr ((sizeof(T) == 8) == (sizeof(Bias) == 8)) {
        using Kernel = BiasRows<T, Bias>;
        const std::int64_t columns = columns_of(c);
        launcher.template run<Kernel>(slice_shape<Kernel>(rows_of(c), columns),
                                      BiasArgs<T, Bias>{data<T>(c), data<Bias>(bias), columns, accumulate == Accumulate::yes,
                                                        whole_words(columns, {c, bias})});
      }
    });
  });
}

template <class Launcher>
void Elementwise<Launcher>::multiply(const Launcher& launcher, TensorView y, TensorView x, double factor) {
  with_type(y.dtype, [&]<class T>() {
    launcher.template run<Multiply<T>>(
        flat_shape<Multiply<T>>(y.elements(), kWidth<T>),
        MultiplyArgs<T>{data<T>(y), data<T>(x), y.elements(), static_cast<Acc<T>>(factor), whole_words(kWidth<T>, {y, x})});
  });
}

// dy empty: the forward, from x.
template <class Launcher>
void cap_softly(const Launcher& launcher, TensorView out, TensorView dy, TensorView x, double cap) {
  with_type(x.dtype, [&]<class T>() {
    launcher.template run<SoftCap<T>>(flat_shape<SoftCap<T>>(x.elements(), kWidth<T>),
                                      SoftCapArgs<T>{data<T>(out), data<T>(dy), data<T>(x), x.elements(),
                                                     static_cast<Acc<T>>(cap), whole_words(kWidth<T>, {out, dy, x})});
  });
}
template <class Launcher>
void Elementwise<Launcher>::soft_cap(const Launcher& launcher, TensorView y, TensorView x, double cap) {
  cap_softly(launcher, y, {}, x, cap);
}
template <class Launcher>
void Elementwise<Launcher>::soft_cap_grad(const Launcher& launcher, TensorView dx, TensorView dy, TensorView y, double cap) {
  cap_softly(launcher, dx, dy, y, cap);
}

template <class Launcher>
void Elementwise<Launcher>::convert(const Launcher& launcher, TensorView y, TensorView x, Accumulate accumulate) {
  with_type(y.dtype, [&]<class To>() {
    with_type(x.dtype, [&]<class From>() {
      using Kernel = Convert<To, From>;
      constexpr int width = kCommonWidth<To, From>;
      launcher.template run<Kernel>(flat_shape<Kernel>(y.elements(), width),
                                    ConvertArgs<To, From>{data<To>(y), data<From>(x), y.elements(),
                                                          accumulate == Accumulate::yes, whole_words(width, {y, x})});
    });
  });
}

template <class Launcher>
void Elementwise<Launcher>::columns(const Launcher& launcher, TensorView y, std::int64_t first_y, TensorView x,
                                    std::int64_t first_x, std::int64_t count, Accumulate accumulate) {
  if (count == 0 || y.shape[0] == 0) return;
  with_type(y.dtype, [&]<class T>() {
    using Kernel = CopyColumns<T>;
    const auto words = [](std::int64_t columns) { return columns * static_cast<std::int64_t>(sizeof(T)) % kWordBytes == 0; };
    launcher.template run<Kernel>(
        slice_shape<Kernel>(y.shape[0], count),
        ColumnsArgs<T>{
            data<T>(y) + first_y, data<T>(x) + first_x, y.shape[1], x.shape[1], count, accumulate == Accumulate::yes,
            whole_words(y.shape[1], {y}) && whole_words(x.shape[1], {x}) && words(first_y) && words(first_x) && words(count)});
  });
}

template <class Launcher>
void Elementwise<Launcher>::zero(const Launcher& launcher, TensorView y) {
  const auto bytes = static_cast<std::int64_t>(y.bytes());
  const bool whole = reinterpret_cast<std::uintptr_t>(y.data) % kWordBytes == 0;
  launcher.template run<Zero>(flat_shape<Zero>(bytes, kWordBytes), ZeroArgs{data<unsigned char>(y), bytes, whole});
}

}  // namespace terrace::cuda::ops
