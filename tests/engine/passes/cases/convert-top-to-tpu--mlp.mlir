module @m {
  func.func @main(%arg0: tensor<1x2x128xf32>) -> tensor<1x2x128xf32> {
    %0 = "top.None"() : () -> none
    %1 = "top.Input"(%arg0) : (tensor<1x2x128xf32>) -> tensor<1x2x128xf32> loc("input_states")
    %2 = "top.Weight"() {tensors = ["mlp.gate_proj.weight"], transforms = ["transpose"]} : () -> tensor<128x64xf32> loc("mlp.gate_proj.weight")
    %3 = "top.Weight"() {tensors = ["mlp.up_proj.weight"], transforms = ["transpose"]} : () -> tensor<128x64xf32> loc("mlp.up_proj.weight")
    %4 = "top.Weight"() {tensors = ["mlp.down_proj.weight"], transforms = ["transpose"]} : () -> tensor<64x128xf32> loc("mlp.down_proj.weight")
    %5 = "top.MLP"(%1, %2, %3, %4, %0, %0, %0) {activation = "SILU"} : (tensor<1x2x128xf32>, tensor<128x64xf32>, tensor<128x64xf32>, tensor<64x128xf32>, none, none, none) -> tensor<1x2x128xf32> loc("mlp")
    return %5 : tensor<1x2x128xf32>
  }
}
// after
module @m attributes {module.state = "TPU_LOWERED"} {
  func.func @main(%arg0: tensor<1x2x128xf32>) -> tensor<1x2x128xf32> {
    %0 = "top.None"() : () -> none
    %1 = "top.Input"(%arg0) : (tensor<1x2x128xf32>) -> tensor<1x2x128xf32>
    %2 = "top.Weight"() {path = "tpu.A16MatMul.weight", tensors = ["mlp.gate_proj.weight"], transforms = ["transpose", "quantize(w4,g64,asymmetric).weight"]} : () -> tensor<64x64xui8>
    %3 = "top.Weight"() {path = "tpu.A16MatMul.scale", tensors = ["mlp.gate_proj.weight"], transforms = ["transpose", "quantize(w4,g64,asymmetric).scale", "cast(bf16)"]} : () -> tensor<64x2xbf16>
    %4 = "top.Weight"() {path = "tpu.A16MatMul.zero_point", tensors = ["mlp.gate_proj.weight"], transforms = ["transpose", "quantize(w4,g64,asymmetric).zero_point"]} : () -> tensor<64x2xui8>
    %5 = "top.Weight"() {path = "tpu.A16MatMul.weight", tensors = ["mlp.up_proj.weight"], transforms = ["transpose", "quantize(w4,g64,asymmetric).weight"]} : () -> tensor<64x64xui8>
    %6 = "top.Weight"() {path = "tpu.A16MatMul.scale", tensors = ["mlp.up_proj.weight"], transforms = ["transpose", "quantize(w4,g64,asymmetric).scale", "cast(bf16)"]} : () -> tensor<64x2xbf16>
    %7 = "top.Weight"() {path = "tpu.A16MatMul.zero_point", tensors = ["mlp.up_proj.weight"], transforms = ["transpose", "quantize(w4,g64,asymmetric).zero_point"]} : () -> tensor<64x2xui8>
    %8 = "top.Weight"() {path = "tpu.A16MatMul.weight", tensors = ["mlp.down_proj.weight"], transforms = ["transpose", "quantize(w4,g64,asymmetric).weight"]} : () -> tensor<128x32xui8>
    %9 = "top.Weight"() {path = "tpu.A16MatMul.scale", tensors = ["mlp.down_proj.weight"], transforms = ["transpose", "quantize(w4,g64,asymmetric).scale", "cast(bf16)"]} : () -> tensor<128x1xbf16>
    %10 = "top.Weight"() {path = "tpu.A16MatMul.zero_point", tensors = ["mlp.down_proj.weight"], transforms = ["transpose", "quantize(w4,g64,asymmetric).zero_point"]} : () -> tensor<128x1xui8>
    %11 = "tpu.Cast"(%1) : (tensor<1x2x128xf32>) -> tensor<1x2x128xbf16>
    %12 = "tpu.A16MatMul"(%11, %2, %3, %4, %0) {q_group_size = 64 : i64, w_transpose = true, weight_bits = 4 : i64} : (tensor<1x2x128xbf16>, tensor<64x64xui8>, tensor<64x2xbf16>, tensor<64x2xui8>, none) -> tensor<1x2x64xbf16>
    %13 = "tpu.Cast"(%12) : (tensor<1x2x64xbf16>) -> tensor<1x2x64xf32>
    %14 = "tpu.Active"(%13) {mode = "SILU"} : (tensor<1x2x64xf32>) -> tensor<1x2x64xf32>
    %15 = "tpu.Cast"(%14) : (tensor<1x2x64xf32>) -> tensor<1x2x64xbf16>
    %16 = "tpu.A16MatMul"(%11, %5, %6, %7, %0) {q_group_size = 64 : i64, w_transpose = true, weight_bits = 4 : i64} : (tensor<1x2x128xbf16>, tensor<64x64xui8>, tensor<64x2xbf16>, tensor<64x2xui8>, none) -> tensor<1x2x64xbf16>
    %17 = "tpu.Mul"(%15, %16) : (tensor<1x2x64xbf16>, tensor<1x2x64xbf16>) -> tensor<1x2x64xbf16>
    %18 = "tpu.A16MatMul"(%17, %8, %9, %10, %0) {q_group_size = 64 : i64, w_transpose = true, weight_bits = 4 : i64} : (tensor<1x2x64xbf16>, tensor<128x32xui8>, tensor<128x1xbf16>, tensor<128x1xui8>, none) -> tensor<1x2x128xbf16>
    %19 = "tpu.Cast"(%18) : (tensor<1x2x128xbf16>) -> tensor<1x2x128xf32>
    return %19 : tensor<1x2x128xf32>
  }
}
