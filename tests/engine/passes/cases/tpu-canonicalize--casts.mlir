module @m {
  func.func @main(%arg0: tensor<1x1x64xf32>, %arg1: tensor<1x1xsi32>) -> (tensor<1x1x64xf32>, tensor<1x1x2x16xf32>, tensor<1x1x2x16xf32>) {
    %0 = "top.Input"(%arg0) : (tensor<1x1x64xf32>) -> tensor<1x1x64xf32> loc("input_states")
    %1 = "top.Input"(%arg1) : (tensor<1x1xsi32>) -> tensor<1x1xsi32> loc("position_ids")
    %2 = "tpu.Cast"(%0) : (tensor<1x1x64xf32>) -> tensor<1x1x64xbf16> loc("in")
    %3 = "tpu.Cast"(%2) : (tensor<1x1x64xbf16>) -> tensor<1x1x64xf32> loc("wide")
    %4 = "tpu.Cast"(%3) : (tensor<1x1x64xf32>) -> tensor<1x1x64xbf16> loc("narrow")
    %5 = "tpu.Add"(%2, %4) : (tensor<1x1x64xbf16>, tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16> loc("sum")
    %6 = "tpu.Cast"(%5) : (tensor<1x1x64xbf16>) -> tensor<1x1x64xf32> loc("out")
    %7 = "tpu.Cast"(%0) : (tensor<1x1x64xf32>) -> tensor<1x1x64xbf16> loc("in")
    %8 = "tpu.Mul"(%5, %7) : (tensor<1x1x64xbf16>, tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16> loc("product")
    %9 = "tpu.Cast"(%8) : (tensor<1x1x64xbf16>) -> tensor<1x1x64xf32> loc("wide product")
    %10 = "tpu.Active"(%9) {mode = "SILU"} : (tensor<1x1x64xf32>) -> tensor<1x1x64xf32> loc("act")
    %11 = "top.Weight"() {tensors = ["k"], transforms = ["cast(bf16)"]} : () -> tensor<1x1x2x16xbf16> loc("k")
    %12 = "tpu.Cast"(%11) : (tensor<1x1x2x16xbf16>) -> tensor<1x1x2x16xf32> loc("k out")
    return %10, %12, %12 : tensor<1x1x64xf32>, tensor<1x1x2x16xf32>, tensor<1x1x2x16xf32>
  }
}
// after
module @m {
  func.func @main(%arg0: tensor<1x1x64xbf16>, %arg1: tensor<1x1xsi32>) -> (tensor<1x1x64xf32>, tensor<1x1x2x16xbf16>, tensor<1x1x2x16xbf16>) {
    %0 = "top.Input"(%arg0) : (tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16>
    %1 = "top.Input"(%arg1) : (tensor<1x1xsi32>) -> tensor<1x1xsi32>
    %2 = "tpu.Add"(%0, %0) : (tensor<1x1x64xbf16>, tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16>
    %3 = "tpu.Mul"(%2, %0) : (tensor<1x1x64xbf16>, tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16>
    %4 = "tpu.Cast"(%3) : (tensor<1x1x64xbf16>) -> tensor<1x1x64xf32>
    %5 = "tpu.Active"(%4) {mode = "SILU"} : (tensor<1x1x64xf32>) -> tensor<1x1x64xf32>
    %6 = "top.Weight"() {tensors = ["k"], transforms = ["cast(bf16)"]} : () -> tensor<1x1x2x16xbf16>
    return %5, %6, %6 : tensor<1x1x64xf32>, tensor<1x1x2x16xbf16>, tensor<1x1x2x16xbf16>
  }
}
