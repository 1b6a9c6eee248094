// SPDX-License-Identifier: MIT
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <string_view>

#if CUDNN_VERSION < 90800
#error "tutti needs cuDNN 9.8 or newer"
#endif

// The attributes of cuDNN's backend descriptors that tutti uses. Each has its name for messages, and its C++ type: a
// value of a wrong type does not compile.
namespace tutti::cuda::cudnn {

using RawDescriptor = cudnnBackendDescriptor_t;

template <class T>
struct Attribute {
  using Type = T;
  cudnnBackendAttributeName_t id;
  std::string_view name;
};

// cuDNN's tag of a C++ type. In cuDNN descriptors and data pointers are void*; here a data pointer is a DataPointer.
struct DataPointer {
  void* data;
};
template <class T>
inline constexpr cudnnBackendAttributeType_t type_tag = [] {
  static_assert(sizeof(T) == 0, "cuDNN has no attributes of this type");
  return CUDNN_TYPE_INT64;
}();
// clang-format off
template <> inline constexpr auto type_tag<std::int64_t> = CUDNN_TYPE_INT64;
template <> inline constexpr auto type_tag<std::int32_t> = CUDNN_TYPE_INT32;
template <> inline constexpr auto type_tag<float> = CUDNN_TYPE_FLOAT;
template <> inline constexpr auto type_tag<bool> = CUDNN_TYPE_BOOLEAN;
template <> inline constexpr auto type_tag<char> = CUDNN_TYPE_CHAR;
template <> inline constexpr auto type_tag<cudnnHandle_t> = CUDNN_TYPE_HANDLE;
template <> inline constexpr auto type_tag<RawDescriptor> = CUDNN_TYPE_BACKEND_DESCRIPTOR;
template <> inline constexpr auto type_tag<DataPointer> = CUDNN_TYPE_VOID_PTR;
template <> inline constexpr auto type_tag<cudnnDataType_t> = CUDNN_TYPE_DATA_TYPE;
template <> inline constexpr auto type_tag<cudnnConvolutionMode_t> = CUDNN_TYPE_CONVOLUTION_MODE;
template <> inline constexpr auto type_tag<cudnnBackendHeurMode_t> = CUDNN_TYPE_HEUR_MODE;
template <> inline constexpr auto type_tag<cudnnBackendNumericalNote_t> = CUDNN_TYPE_NUMERICAL_NOTE;
template <> inline constexpr auto type_tag<cudnnPointwiseMode_t> = CUDNN_TYPE_POINTWISE_MODE;
template <> inline constexpr auto type_tag<cudnnGenStatsMode_t> = CUDNN_TYPE_GENSTATS_MODE;
template <> inline constexpr auto type_tag<cudnnBnFinalizeStatsMode_t> = CUDNN_TYPE_BN_FINALIZE_STATS_MODE;
template <> inline constexpr auto type_tag<cudnnBackendNormMode_t> = CUDNN_TYPE_NORM_MODE;
template <> inline constexpr auto type_tag<cudnnBackendNormFwdPhase_t> = CUDNN_TYPE_NORM_FWD_PHASE;
// clang-format on

// NOLINTBEGIN(cppcoreguidelines-macro-usage): the name of an enumerator cannot be had otherwise
#define TUTTI_CUDNN_ATTRIBUTE(variable, type, attribute) \
  inline constexpr Attribute<type> variable { CUDNN_ATTR_##attribute, "CUDNN_ATTR_" #attribute }
// NOLINTEND(cppcoreguidelines-macro-usage)
namespace attr {
using cudnn::RawDescriptor;

TUTTI_CUDNN_ATTRIBUTE(tensor_uid, std::int64_t, TENSOR_UNIQUE_ID);
TUTTI_CUDNN_ATTRIBUTE(tensor_type, cudnnDataType_t, TENSOR_DATA_TYPE);
TUTTI_CUDNN_ATTRIBUTE(tensor_alignment, std::int64_t, TENSOR_BYTE_ALIGNMENT);
TUTTI_CUDNN_ATTRIBUTE(tensor_dimensions, std::int64_t, TENSOR_DIMENSIONS);
TUTTI_CUDNN_ATTRIBUTE(tensor_strides, std::int64_t, TENSOR_STRIDES);
TUTTI_CUDNN_ATTRIBUTE(tensor_virtual, bool, TENSOR_IS_VIRTUAL);
TUTTI_CUDNN_ATTRIBUTE(tensor_by_value, bool, TENSOR_IS_BY_VALUE);

TUTTI_CUDNN_ATTRIBUTE(conv_compute_type, cudnnDataType_t, CONVOLUTION_COMP_TYPE);
TUTTI_CUDNN_ATTRIBUTE(conv_mode, cudnnConvolutionMode_t, CONVOLUTION_CONV_MODE);
TUTTI_CUDNN_ATTRIBUTE(conv_dilations, std::int64_t, CONVOLUTION_DILATIONS);
TUTTI_CUDNN_ATTRIBUTE(conv_strides, std::int64_t, CONVOLUTION_FILTER_STRIDES);
TUTTI_CUDNN_ATTRIBUTE(conv_post_paddings, std::int64_t, CONVOLUTION_POST_PADDINGS);
TUTTI_CUDNN_ATTRIBUTE(conv_pre_paddings, std::int64_t, CONVOLUTION_PRE_PADDINGS);
TUTTI_CUDNN_ATTRIBUTE(conv_spatial_dims, std::int64_t, CONVOLUTION_SPATIAL_DIMS);

TUTTI_CUDNN_ATTRIBUTE(forward_alpha, float, OPERATION_CONVOLUTION_FORWARD_ALPHA);
TUTTI_CUDNN_ATTRIBUTE(forward_beta, float, OPERATION_CONVOLUTION_FORWARD_BETA);
TUTTI_CUDNN_ATTRIBUTE(forward_conv, RawDescriptor, OPERATION_CONVOLUTION_FORWARD_CONV_DESC);
TUTTI_CUDNN_ATTRIBUTE(forward_x, RawDescriptor, OPERATION_CONVOLUTION_FORWARD_X);
TUTTI_CUDNN_ATTRIBUTE(forward_w, RawDescriptor, OPERATION_CONVOLUTION_FORWARD_W);
TUTTI_CUDNN_ATTRIBUTE(forward_y, RawDescriptor, OPERATION_CONVOLUTION_FORWARD_Y);
TUTTI_CUDNN_ATTRIBUTE(data_alpha, float, OPERATION_CONVOLUTION_BWD_DATA_ALPHA);
TUTTI_CUDNN_ATTRIBUTE(data_beta, float, OPERATION_CONVOLUTION_BWD_DATA_BETA);
TUTTI_CUDNN_ATTRIBUTE(data_conv, RawDescriptor, OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC);
TUTTI_CUDNN_ATTRIBUTE(data_dy, RawDescriptor, OPERATION_CONVOLUTION_BWD_DATA_DY);
TUTTI_CUDNN_ATTRIBUTE(data_w, RawDescriptor, OPERATION_CONVOLUTION_BWD_DATA_W);
TUTTI_CUDNN_ATTRIBUTE(data_dx, RawDescriptor, OPERATION_CONVOLUTION_BWD_DATA_DX);
TUTTI_CUDNN_ATTRIBUTE(weights_alpha, float, OPERATION_CONVOLUTION_BWD_FILTER_ALPHA);
TUTTI_CUDNN_ATTRIBUTE(weights_beta, float, OPERATION_CONVOLUTION_BWD_FILTER_BETA);
TUTTI_CUDNN_ATTRIBUTE(weights_conv, RawDescriptor, OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC);
TUTTI_CUDNN_ATTRIBUTE(weights_x, RawDescriptor, OPERATION_CONVOLUTION_BWD_FILTER_X);
TUTTI_CUDNN_ATTRIBUTE(weights_dy, RawDescriptor, OPERATION_CONVOLUTION_BWD_FILTER_DY);
TUTTI_CUDNN_ATTRIBUTE(weights_dw, RawDescriptor, OPERATION_CONVOLUTION_BWD_FILTER_DW);

TUTTI_CUDNN_ATTRIBUTE(pointwise_mode, cudnnPointwiseMode_t, POINTWISE_MODE);
TUTTI_CUDNN_ATTRIBUTE(pointwise_precision, cudnnDataType_t, POINTWISE_MATH_PREC);
TUTTI_CUDNN_ATTRIBUTE(pointwise_what, RawDescriptor, OPERATION_POINTWISE_PW_DESCRIPTOR);
TUTTI_CUDNN_ATTRIBUTE(pointwise_x, RawDescriptor, OPERATION_POINTWISE_XDESC);
TUTTI_CUDNN_ATTRIBUTE(pointwise_b, RawDescriptor, OPERATION_POINTWISE_BDESC);
TUTTI_CUDNN_ATTRIBUTE(pointwise_y, RawDescriptor, OPERATION_POINTWISE_YDESC);
TUTTI_CUDNN_ATTRIBUTE(pointwise_alpha1, float, OPERATION_POINTWISE_ALPHA1);
TUTTI_CUDNN_ATTRIBUTE(pointwise_alpha2, float, OPERATION_POINTWISE_ALPHA2);
TUTTI_CUDNN_ATTRIBUTE(pointwise_dx, RawDescriptor, OPERATION_POINTWISE_DXDESC);
TUTTI_CUDNN_ATTRIBUTE(pointwise_dy, RawDescriptor, OPERATION_POINTWISE_DYDESC);

TUTTI_CUDNN_ATTRIBUTE(stats_mode, cudnnGenStatsMode_t, OPERATION_GENSTATS_MODE);
TUTTI_CUDNN_ATTRIBUTE(stats_precision, cudnnDataType_t, OPERATION_GENSTATS_MATH_PREC);
TUTTI_CUDNN_ATTRIBUTE(stats_x, RawDescriptor, OPERATION_GENSTATS_XDESC);
TUTTI_CUDNN_ATTRIBUTE(stats_sum, RawDescriptor, OPERATION_GENSTATS_SUMDESC);
TUTTI_CUDNN_ATTRIBUTE(stats_square_sum, RawDescriptor, OPERATION_GENSTATS_SQSUMDESC);

TUTTI_CUDNN_ATTRIBUTE(norm_mode, cudnnBackendNormMode_t, OPERATION_NORM_FWD_MODE);
TUTTI_CUDNN_ATTRIBUTE(norm_phase, cudnnBackendNormFwdPhase_t, OPERATION_NORM_FWD_PHASE);
TUTTI_CUDNN_ATTRIBUTE(norm_x, RawDescriptor, OPERATION_NORM_FWD_XDESC);
TUTTI_CUDNN_ATTRIBUTE(norm_mean, RawDescriptor, OPERATION_NORM_FWD_MEAN_DESC);
TUTTI_CUDNN_ATTRIBUTE(norm_inv_std, RawDescriptor, OPERATION_NORM_FWD_INV_VARIANCE_DESC);
TUTTI_CUDNN_ATTRIBUTE(norm_scale, RawDescriptor, OPERATION_NORM_FWD_SCALE_DESC);
TUTTI_CUDNN_ATTRIBUTE(norm_bias, RawDescriptor, OPERATION_NORM_FWD_BIAS_DESC);
TUTTI_CUDNN_ATTRIBUTE(norm_epsilon, RawDescriptor, OPERATION_NORM_FWD_EPSILON_DESC);
TUTTI_CUDNN_ATTRIBUTE(norm_momentum, RawDescriptor, OPERATION_NORM_FWD_EXP_AVG_FACTOR_DESC);
TUTTI_CUDNN_ATTRIBUTE(norm_old_mean, RawDescriptor, OPERATION_NORM_FWD_INPUT_RUNNING_MEAN_DESC);
TUTTI_CUDNN_ATTRIBUTE(norm_old_variance, RawDescriptor, OPERATION_NORM_FWD_INPUT_RUNNING_VAR_DESC);
TUTTI_CUDNN_ATTRIBUTE(norm_new_mean, RawDescriptor, OPERATION_NORM_FWD_OUTPUT_RUNNING_MEAN_DESC);
TUTTI_CUDNN_ATTRIBUTE(norm_new_variance, RawDescriptor, OPERATION_NORM_FWD_OUTPUT_RUNNING_VAR_DESC);
TUTTI_CUDNN_ATTRIBUTE(norm_y, RawDescriptor, OPERATION_NORM_FWD_YDESC);

TUTTI_CUDNN_ATTRIBUTE(dnorm_mode, cudnnBackendNormMode_t, OPERATION_NORM_BWD_MODE);
TUTTI_CUDNN_ATTRIBUTE(dnorm_x, RawDescriptor, OPERATION_NORM_BWD_XDESC);
TUTTI_CUDNN_ATTRIBUTE(dnorm_mean, RawDescriptor, OPERATION_NORM_BWD_MEAN_DESC);
TUTTI_CUDNN_ATTRIBUTE(dnorm_inv_std, RawDescriptor, OPERATION_NORM_BWD_INV_VARIANCE_DESC);
TUTTI_CUDNN_ATTRIBUTE(dnorm_dy, RawDescriptor, OPERATION_NORM_BWD_DYDESC);
TUTTI_CUDNN_ATTRIBUTE(dnorm_scale, RawDescriptor, OPERATION_NORM_BWD_SCALE_DESC);
TUTTI_CUDNN_ATTRIBUTE(dnorm_dscale, RawDescriptor, OPERATION_NORM_BWD_DSCALE_DESC);
TUTTI_CUDNN_ATTRIBUTE(dnorm_dbias, RawDescriptor, OPERATION_NORM_BWD_DBIAS_DESC);
TUTTI_CUDNN_ATTRIBUTE(dnorm_dx, RawDescriptor, OPERATION_NORM_BWD_DXDESC);

TUTTI_CUDNN_ATTRIBUTE(dweights_precision, cudnnDataType_t, OPERATION_BN_BWD_WEIGHTS_MATH_PREC);
TUTTI_CUDNN_ATTRIBUTE(dweights_mean, RawDescriptor, OPERATION_BN_BWD_WEIGHTS_MEAN_DESC);
TUTTI_CUDNN_ATTRIBUTE(dweights_inv_std, RawDescriptor, OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC);
TUTTI_CUDNN_ATTRIBUTE(dweights_scale, RawDescriptor, OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC);
TUTTI_CUDNN_ATTRIBUTE(dweights_x, RawDescriptor, OPERATION_BN_BWD_WEIGHTS_X_DESC);
TUTTI_CUDNN_ATTRIBUTE(dweights_dy, RawDescriptor, OPERATION_BN_BWD_WEIGHTS_DY_DESC);
TUTTI_CUDNN_ATTRIBUTE(dweights_dscale, RawDescriptor, OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC);
TUTTI_CUDNN_ATTRIBUTE(dweights_dbias, RawDescriptor, OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC);
TUTTI_CUDNN_ATTRIBUTE(dweights_eq_dy_scale, RawDescriptor, OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC);
TUTTI_CUDNN_ATTRIBUTE(dweights_eq_x_scale, RawDescriptor, OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC);
TUTTI_CUDNN_ATTRIBUTE(dweights_eq_bias, RawDescriptor, OPERATION_BN_BWD_WEIGHTS_EQ_BIAS);

TUTTI_CUDNN_ATTRIBUTE(graph_handle, cudnnHandle_t, OPERATIONGRAPH_HANDLE);
TUTTI_CUDNN_ATTRIBUTE(graph_operations, RawDescriptor, OPERATIONGRAPH_OPS);
TUTTI_CUDNN_ATTRIBUTE(graph_engines, std::int64_t, OPERATIONGRAPH_ENGINE_GLOBAL_COUNT);

TUTTI_CUDNN_ATTRIBUTE(device_id, std::int32_t, DEVICEPROP_DEVICE_ID);
TUTTI_CUDNN_ATTRIBUTE(device_json, char, DEVICEPROP_JSON_REPRESENTATION);

TUTTI_CUDNN_ATTRIBUTE(heuristics_mode, cudnnBackendHeurMode_t, ENGINEHEUR_MODE);
TUTTI_CUDNN_ATTRIBUTE(heuristics_graph, RawDescriptor, ENGINEHEUR_OPERATION_GRAPH);
TUTTI_CUDNN_ATTRIBUTE(heuristics_device, RawDescriptor, ENGINEHEUR_DEVICEPROP);
TUTTI_CUDNN_ATTRIBUTE(heuristics_results, RawDescriptor, ENGINEHEUR_RESULTS);

TUTTI_CUDNN_ATTRIBUTE(engine_index, std::int64_t, ENGINE_GLOBAL_INDEX);
TUTTI_CUDNN_ATTRIBUTE(engine_notes, cudnnBackendNumericalNote_t, ENGINE_NUMERICAL_NOTE);
TUTTI_CUDNN_ATTRIBUTE(config_engine, RawDescriptor, ENGINECFG_ENGINE);

TUTTI_CUDNN_ATTRIBUTE(plan_handle, cudnnHandle_t, EXECUTION_PLAN_HANDLE);
TUTTI_CUDNN_ATTRIBUTE(plan_config, RawDescriptor, EXECUTION_PLAN_ENGINE_CONFIG);
TUTTI_CUDNN_ATTRIBUTE(plan_device, RawDescriptor, EXECUTION_PLAN_DEVICEPROP);
TUTTI_CUDNN_ATTRIBUTE(plan_workspace, std::int64_t, EXECUTION_PLAN_WORKSPACE_SIZE);
TUTTI_CUDNN_ATTRIBUTE(plan_json, char, EXECUTION_PLAN_JSON_REPRESENTATION);

TUTTI_CUDNN_ATTRIBUTE(pack_uids, std::int64_t, VARIANT_PACK_UNIQUE_IDS);
TUTTI_CUDNN_ATTRIBUTE(pack_pointers, DataPointer, VARIANT_PACK_DATA_POINTERS);
TUTTI_CUDNN_ATTRIBUTE(pack_workspace, DataPointer, VARIANT_PACK_WORKSPACE);

}  // namespace attr
#undef TUTTI_CUDNN_ATTRIBUTE

}  // namespace tutti::cuda::cudnn
