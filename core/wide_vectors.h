// For the target attribute of functions with 512-bit vectors: g++ uses 256 bits unless told otherwise. clang has no such hint.
#pragma once

#ifdef __clang__
#define TERRACE_WIDE_VECTORS ""
#else
#define TERRACE_WIDE_VECTORS ",prefer-vector-width=512"
#endif
