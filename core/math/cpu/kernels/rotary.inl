// Rotary positions.
// Internal to core/math/cpu/kernels.inl.

namespace terrace::cpu {
namespace {

template <class T, class A = Acc<T>>
void rotate(T* x, const A* cosine, const A* sine, i64 half, bool inverse) {
  const A sign = inverse ? A(-1) : A(1);
  sweep<Vector<A>::lanes>(
      half, [&](i64 i, auto w) __attribute__((always_inline)) {
        const Vec<A> a = load(x + i, w), b = load(x + half + i, w);
        const Vec<A> c = load(cosine + i, w), s = load(sine + i, w) * sign;
        store(x + i, a * c - b * s, w);
        store(x + half + i, b * c + a * s, w);
      });
}

}  // namespace
}  // namespace terrace::cpu
