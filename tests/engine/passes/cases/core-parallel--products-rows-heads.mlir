// options: chip_name=bm1688 cores=2
module @m {
  func.func @main(%arg0: tensor<1x1x64xbf16>, %arg1: tensor<1x1xsi32>, %arg2: tensor<1x96x3x16xbf16>) -> (tensor<1x1x96xf32>, tensor<1x1x3x16xbf16>) {
    %0 = "top.None"() : () -> none
    %1 = "top.Input"(%arg0) : (tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16> loc("input_states")
    %2 = "top.Input"(%arg1) : (tensor<1x1xsi32>) -> tensor<1x1xsi32> loc("position_ids")
    %3 = "top.Input"(%arg2) : (tensor<1x96x3x16xbf16>) -> tensor<1x96x3x16xbf16> loc("history_k")
    %4 = "top.Weight"() {tensors = ["gain"], transforms = ["cast(bf16)"]} : () -> tensor<64xbf16> loc("gain")
    %5 = "top.Weight"() {tensors = ["q"], transforms = ["cast(bf16)"]} : () -> tensor<64x96xbf16> loc("q")
    %6 = "top.Weight"() {tensors = ["k"], transforms = ["cast(bf16)"]} : () -> tensor<64x48xbf16> loc("k")
    %7 = "top.Weight"() {tensors = ["v"], transforms = ["cast(bf16)"]} : () -> tensor<64x48xbf16> loc("v")
    %8 = "top.Weight"() {tensors = ["cos"], transforms = ["cast(bf16)"]} : () -> tensor<96x1x16xbf16> loc("cos")
    %9 = "top.Weight"() {tensors = ["sin"], transforms = ["cast(bf16)"]} : () -> tensor<96x1x16xbf16> loc("sin")
    %10 = "tpu.RMSNorm"(%1, %4) {eps = 1.0e-6 : f64} : (tensor<1x1x64xbf16>, tensor<64xbf16>) -> tensor<1x1x64xbf16> loc("norm")
    %11 = "tpu.MatMul"(%10, %5, %0) {right_transpose = false} : (tensor<1x1x64xbf16>, tensor<64x96xbf16>, none) -> tensor<1x1x96xbf16> loc("q_proj")
    %12 = "tpu.Reshape"(%11) : (tensor<1x1x96xbf16>) -> tensor<1x1x6x16xbf16> loc("q_heads")
    %13 = "tpu.MatMul"(%10, %6, %0) {right_transpose = false} : (tensor<1x1x64xbf16>, tensor<64x48xbf16>, none) -> tensor<1x1x48xbf16> loc("k_proj")
    %14 = "tpu.Reshape"(%13) : (tensor<1x1x48xbf16>) -> tensor<1x1x3x16xbf16> loc("k_heads")
    %15 = "tpu.Gather"(%8, %2) : (tensor<96x1x16xbf16>, tensor<1x1xsi32>) -> tensor<1x1x1x16xbf16> loc("rope.cos")
    %16 = "tpu.Gather"(%9, %2) : (tensor<96x1x16xbf16>, tensor<1x1xsi32>) -> tensor<1x1x1x16xbf16> loc("rope.sin")
    %17 = "tpu.Rope"(%12, %16, %15) {rope_mode = "contiguous_halves"} : (tensor<1x1x6x16xbf16>, tensor<1x1x1x16xbf16>, tensor<1x1x1x16xbf16>) -> tensor<1x1x6x16xbf16> loc("q_rope")
    %18 = "tpu.MatMul"(%10, %7, %0) {right_transpose = false} : (tensor<1x1x64xbf16>, tensor<64x48xbf16>, none) -> tensor<1x1x48xbf16> loc("v_proj")
    %19 = "tpu.Reshape"(%18) : (tensor<1x1x48xbf16>) -> tensor<1x1x3x16xbf16> loc("v_heads")
    %20 = "tpu.Concat"(%3, %14) {axis = 1 : i64, only_merge = true} : (tensor<1x96x3x16xbf16>, tensor<1x1x3x16xbf16>) -> tensor<1x97x3x16xbf16> loc("keys")
    %21 = "tpu.FAttention"(%17, %20, %20, %0, %0) {batch = 1 : i64, dim = 16 : i64, kv_head = 3 : i64, mask_size = 0 : i64, mk = 97 : i64, mq = 1 : i64, q_head = 6 : i64, scale = 2.500000e-01 : f64} : (tensor<1x1x6x16xbf16>, tensor<1x97x3x16xbf16>, tensor<1x97x3x16xbf16>, none, none) -> tensor<1x1x96xbf16> loc("attention")
    %22 = "tpu.Cast"(%21) : (tensor<1x1x96xbf16>) -> tensor<1x1x96xf32> loc("wide")
    return %22, %19 : tensor<1x1x96xf32>, tensor<1x1x3x16xbf16>
  }
}
// after
module @m {
  func.func @main(%arg0: tensor<1x1x64xbf16>, %arg1: tensor<1x1xsi32>, %arg2: tensor<1x96x3x16xbf16>) -> (tensor<1x1x96xf32>, tensor<1x1x3x16xbf16>) {
    %0 = "top.None"() : () -> none
    %1 = "top.Input"(%arg0) : (tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16>
    %2 = "top.Input"(%arg1) : (tensor<1x1xsi32>) -> tensor<1x1xsi32>
    %3 = "top.Input"(%arg2) : (tensor<1x96x3x16xbf16>) -> tensor<1x96x3x16xbf16>
    %4 = "top.Weight"() {tensors = ["gain"], transforms = ["cast(bf16)"]} : () -> tensor<64xbf16>
    %5 = "top.Weight"() {tensors = ["q"], transforms = ["cast(bf16)"]} : () -> tensor<64x96xbf16>
    %6 = "top.Weight"() {tensors = ["k"], transforms = ["cast(bf16)"]} : () -> tensor<64x48xbf16>
    %7 = "top.Weight"() {tensors = ["v"], transforms = ["cast(bf16)"]} : () -> tensor<64x48xbf16>
    %8 = "top.Weight"() {tensors = ["cos"], transforms = ["cast(bf16)"]} : () -> tensor<96x1x16xbf16>
    %9 = "top.Weight"() {tensors = ["sin"], transforms = ["cast(bf16)"]} : () -> tensor<96x1x16xbf16>
    %10 = "tpu.RMSNorm"(%1, %4) {eps = 9.9999999999999995E-7 : f64, run_core_id = [0]} : (tensor<1x1x64xbf16>, tensor<64xbf16>) -> tensor<1x1x64xbf16>
    %11 = "tpu.MatMul"(%10, %5, %0) {core_dim = 2 : i64, core_split = [[0, 64], [64, 32]], right_transpose = false, run_core_id = [0, 1]} : (tensor<1x1x64xbf16>, tensor<64x96xbf16>, none) -> tensor<1x1x96xbf16>
    %12 = "tpu.Reshape"(%11) : (tensor<1x1x96xbf16>) -> tensor<1x1x6x16xbf16>
    %13 = "tpu.MatMul"(%10, %6, %0) {group_parallel = 0 : i64, right_transpose = false, run_core_id = [0]} : (tensor<1x1x64xbf16>, tensor<64x48xbf16>, none) -> tensor<1x1x48xbf16>
    %14 = "tpu.MatMul"(%10, %7, %0) {group_parallel = 0 : i64, right_transpose = false, run_core_id = [1]} : (tensor<1x1x64xbf16>, tensor<64x48xbf16>, none) -> tensor<1x1x48xbf16>
    %15 = "tpu.Reshape"(%13) : (tensor<1x1x48xbf16>) -> tensor<1x1x3x16xbf16>
    %16 = "tpu.Gather"(%8, %2) {group_parallel = 1 : i64, run_core_id = [0]} : (tensor<96x1x16xbf16>, tensor<1x1xsi32>) -> tensor<1x1x1x16xbf16>
    %17 = "tpu.Gather"(%9, %2) {group_parallel = 1 : i64, run_core_id = [1]} : (tensor<96x1x16xbf16>, tensor<1x1xsi32>) -> tensor<1x1x1x16xbf16>
    %18 = "tpu.Rope"(%12, %17, %16) {core_dim = 2 : i64, core_split = [[0, 3], [3, 3]], rope_mode = "contiguous_halves", run_core_id = [0, 1]} : (tensor<1x1x6x16xbf16>, tensor<1x1x1x16xbf16>, tensor<1x1x1x16xbf16>) -> tensor<1x1x6x16xbf16>
    %19 = "tpu.Reshape"(%14) : (tensor<1x1x48xbf16>) -> tensor<1x1x3x16xbf16>
    %20 = "tpu.Concat"(%3, %15) {axis = 1 : i64, only_merge = true} : (tensor<1x96x3x16xbf16>, tensor<1x1x3x16xbf16>) -> tensor<1x97x3x16xbf16>
    %21 = "tpu.FAttention"(%18, %20, %20, %0, %0) {batch = 1 : i64, core_dim = 2 : i64, core_split = [[0, 64], [64, 32]], dim = 16 : i64, kv_head = 3 : i64, mask_size = 0 : i64, mk = 97 : i64, mq = 1 : i64, q_head = 6 : i64, run_core_id = [0, 1], scale = 2.500000e-01 : f64} : (tensor<1x1x6x16xbf16>, tensor<1x97x3x16xbf16>, tensor<1x97x3x16xbf16>, none, none) -> tensor<1x1x96xbf16>
    %22 = "tpu.Cast"(%21) {core_dim = 2 : i64, core_split = [[0, 48], [48, 48]], run_core_id = [0, 1]} : (tensor<1x1x96xbf16>) -> tensor<1x1x96xf32>
    return %22, %19 : tensor<1x1x96xf32>, tensor<1x1x3x16xbf16>
  }
}
