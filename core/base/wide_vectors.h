// For the target attribute of functions with 512-bit vectors: g++ uses 256 bits by default. clang has no such option.
#pragma once

#ifdef __clang__
#define TERRACE_WIDE_VECTORS ""
#else
#define TERRACE_WIDE_VECTORS ",prefer-vector-width=512"
#endif
