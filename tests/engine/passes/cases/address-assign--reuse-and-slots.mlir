module @m {
  func.func @main(%arg0: tensor<1x1x64xbf16>, %arg1: tensor<1x64x2x16xbf16>, %arg2: tensor<1x64x2x16xbf16>) -> (tensor<1x1x64xbf16>, tensor<1x1x2x16xbf16>, tensor<1x1x2x16xbf16>) {
    %0 = "top.None"() : () -> none
    %1 = "top.Input"(%arg0) : (tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16> loc("input_states")
    %2 = "top.Input"(%arg1) : (tensor<1x64x2x16xbf16>) -> tensor<1x64x2x16xbf16> loc("history_k")
    %3 = "top.Input"(%arg2) : (tensor<1x64x2x16xbf16>) -> tensor<1x64x2x16xbf16> loc("history_v")
    %4 = "top.Weight"() {tensors = ["@causal_mask"], transforms = []} : () -> tensor<256x256xf32> loc("@causal_mask")
    %5 = "top.Weight"() {tensors = ["w"], transforms = ["transpose", "cast(bf16)"]} : () -> tensor<64x32xbf16> loc("w")
    %6 = "tpu.MatMul"(%1, %5, %0) {right_transpose = false} : (tensor<1x1x64xbf16>, tensor<64x32xbf16>, none) -> tensor<1x1x32xbf16> loc("k_proj")
    %7 = "tpu.Reshape"(%6) : (tensor<1x1x32xbf16>) -> tensor<1x1x2x16xbf16> loc("k")
    %8 = "tpu.MatMul"(%1, %5, %0) {right_transpose = false} : (tensor<1x1x64xbf16>, tensor<64x32xbf16>, none) -> tensor<1x1x32xbf16> loc("v_proj")
    %9 = "tpu.Reshape"(%8) : (tensor<1x1x32xbf16>) -> tensor<1x1x2x16xbf16> loc("v")
    %10 = "tpu.Concat"(%2, %7) {axis = 1 : i64, only_merge = true} : (tensor<1x64x2x16xbf16>, tensor<1x1x2x16xbf16>) -> tensor<1x65x2x16xbf16> loc("keys")
    %11 = "tpu.Add"(%1, %1) : (tensor<1x1x64xbf16>, tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16> loc("a")
    %12 = "tpu.Add"(%11, %1) : (tensor<1x1x64xbf16>, tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16> loc("b")
    %13 = "tpu.Add"(%12, %1) : (tensor<1x1x64xbf16>, tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16> loc("c")
    %14 = "tpu.Add"(%13, %1) : (tensor<1x1x64xbf16>, tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16> loc("d")
    return %14, %7, %9 : tensor<1x1x64xbf16>, tensor<1x1x2x16xbf16>, tensor<1x1x2x16xbf16>
  }
}
// after
module @m attributes {module.coeff_addr = 4294967296 : i64, module.coeff_size = 266240 : i64, module.io_addr = 4295233536 : i64, module.io_size = 24576 : i64, module.neuron_addr = 4295258112 : i64, module.neuron_size = 8192 : i64, module.state = "TPU_ADDRESSED"} {
  func.func @main(%arg0: tensor<1x1x64xbf16, 4295249920 : i64>, %arg1: tensor<1x64x2x16xbf16, 4295233536 : i64>, %arg2: tensor<1x64x2x16xbf16, 4295241728 : i64>) -> (tensor<1x1x64xbf16, 4295254016 : i64>, tensor<1x1x2x16xbf16, 4295237632 : i64>, tensor<1x1x2x16xbf16, 4295245824 : i64>) {
    %0 = "top.None"() : () -> none
    %1 = "top.Input"(%arg0) : (tensor<1x1x64xbf16, 4295249920 : i64>) -> tensor<1x1x64xbf16, 4295249920 : i64>
    %2 = "top.Input"(%arg1) : (tensor<1x64x2x16xbf16, 4295233536 : i64>) -> tensor<1x64x2x16xbf16, 4295233536 : i64>
    %3 = "top.Input"(%arg2) : (tensor<1x64x2x16xbf16, 4295241728 : i64>) -> tensor<1x64x2x16xbf16, 4295241728 : i64>
    %4 = "top.Weight"() {tensors = ["@causal_mask"], transforms = []} : () -> tensor<256x256xf32, 4294971392 : i64>
    %5 = "top.Weight"() {tensors = ["w"], transforms = ["transpose", "cast(bf16)"]} : () -> tensor<64x32xbf16, 4294967296 : i64>
    %6 = "tpu.MatMul"(%1, %5, %0) {right_transpose = false} : (tensor<1x1x64xbf16, 4295249920 : i64>, tensor<64x32xbf16, 4294967296 : i64>, none) -> tensor<1x1x32xbf16, 4295237632 : i64>
    %7 = "tpu.Reshape"(%6) : (tensor<1x1x32xbf16, 4295237632 : i64>) -> tensor<1x1x2x16xbf16, 4295237632 : i64>
    %8 = "tpu.MatMul"(%1, %5, %0) {right_transpose = false} : (tensor<1x1x64xbf16, 4295249920 : i64>, tensor<64x32xbf16, 4294967296 : i64>, none) -> tensor<1x1x32xbf16, 4295245824 : i64>
    %9 = "tpu.Reshape"(%8) : (tensor<1x1x32xbf16, 4295245824 : i64>) -> tensor<1x1x2x16xbf16, 4295245824 : i64>
    %10 = "tpu.Concat"(%2, %7) {axis = 1 : i64, only_merge = true} : (tensor<1x64x2x16xbf16, 4295233536 : i64>, tensor<1x1x2x16xbf16, 4295237632 : i64>) -> tensor<1x65x2x16xbf16, 4295233536 : i64>
    %11 = "tpu.Add"(%1, %1) : (tensor<1x1x64xbf16, 4295249920 : i64>, tensor<1x1x64xbf16, 4295249920 : i64>) -> tensor<1x1x64xbf16, 4295258112 : i64>
    %12 = "tpu.Add"(%11, %1) : (tensor<1x1x64xbf16, 4295258112 : i64>, tensor<1x1x64xbf16, 4295249920 : i64>) -> tensor<1x1x64xbf16, 4295262208 : i64>
    %13 = "tpu.Add"(%12, %1) : (tensor<1x1x64xbf16, 4295262208 : i64>, tensor<1x1x64xbf16, 4295249920 : i64>) -> tensor<1x1x64xbf16, 4295258112 : i64>
    %14 = "tpu.Add"(%13, %1) : (tensor<1x1x64xbf16, 4295258112 : i64>, tensor<1x1x64xbf16, 4295249920 : i64>) -> tensor<1x1x64xbf16, 4295254016 : i64>
    return %14, %7, %9 : tensor<1x1x64xbf16, 4295254016 : i64>, tensor<1x1x2x16xbf16, 4295237632 : i64>, tensor<1x1x2x16xbf16, 4295245824 : i64>
  }
}
