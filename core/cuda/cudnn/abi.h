// The numbers of cuDNN 9's graph API that are used here, from its reference (docs.nvidia.com/deeplearning/cudnn/backend) and
// its header cudnn_graph.h; they do not change within a major version. Building does not need the header:
// tests/cuda/cudnn_header_test.cpp compares the numbers with it if it is installed.
//
// Owner, threads: values.
#pragma once

namespace terrace::cuda::cudnn {

enum class Kind : int {  // cudnnBackendDescriptorType_t
  pointwise = 0,
  engine = 2,
  engine_config = 3,
  heuristics = 4,
  plan = 5,
  knob_choice = 7,
  pointwise_operation = 13,
  graph = 15,
  variant_pack = 16,
  tensor = 17,
  matmul = 18,
  matmul_operation = 19,
  reduction = 21,
  reduction_operation = 22,
  reshape_operation = 31,
  device = 38,
};

enum class Type : int {  // cudnnBackendAttributeType_t
  handle = 0,
  data_type = 1,
  boolean = 2,
  int64 = 3,
  pointer = 6,
  heuristic_mode = 8,
  knob = 9,
  numerical_note = 11,
  pointwise_mode = 14,
  object = 15,
  reduction = 18,
  character = 24,
};

enum class Name : int {  // cudnnBackendAttributeName_t
  pointwise_mode = 0,
  pointwise_precision = 1,
  pointwise_axis = 9,
  heuristics_mode = 200,
  heuristics_graph = 201,
  heuristics_results = 202,
  heuristics_device = 204,
  config_engine = 300,
  config_knobs = 302,
  plan_config = 401,
  plan_workspace_bytes = 402,
  plan_device = 407,
  knob_type = 600,
  knob_value = 601,
  pointwise_description = 750,
  pointwise_x = 751,
  pointwise_b = 752,
  pointwise_y = 753,
  pointwise_t = 758,
  graph_handle = 800,
  graph_operations = 801,
  tensor_alignment = 900,
  tensor_type = 901,
  tensor_dimensions = 902,
  tensor_strides = 903,
  tensor_id = 906,
  tensor_is_virtual = 907,
  tensor_is_value = 908,
  pack_ids = 1000,
  pack_pointers = 1001,
  pack_workspace = 1003,
  engine_graph = 1300,
  engine_index = 1301,
  engine_notes = 1303,
  engine_device = 1307,
  matmul_precision = 1500,
  matmul_a = 1520,
  matmul_b = 1521,
  matmul_c = 1522,
  matmul_description = 1523,
  reduction_operator = 1600,
  reduction_precision = 1601,
  reduction_is_deterministic = 1602,  // since 9.11
  reduction_x = 1610,
  reduction_y = 1611,
  reduction_description = 1612,
  reshape_x = 2200,
  reshape_y = 2201,
  device_json = 2702,  // since 9.8
};

enum class DataType : int { fp32 = 0, int32 = 4, bf16 = 9, boolean = 11 };
enum class Pointwise : int {
  add = 0,
  mul = 1,
  div = 6,
  sub = 9,
  exp = 13,
  log = 15,
  is_at_least = 303,
  index = 501,
  select = 601,
};
enum class Reduction : int { add = 0, max = 3 };
enum class Heuristic : int { fallback = 2, instant = 3 };
inline constexpr int kNondeterministic = 4;  // cudnnBackendNumericalNote_t

inline constexpr int kSuccess = 0;
inline constexpr bool is_unsupported(int status) { return status / 1000 == 3; }  // CUDNN_STATUS_NOT_SUPPORTED_…
inline constexpr int kOldestVersion = 91100;

}  // namespace terrace::cuda::cudnn
