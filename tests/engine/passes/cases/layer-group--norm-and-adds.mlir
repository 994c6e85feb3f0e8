module @m {
  func.func @main(%arg0: tensor<1x128x64xbf16>) -> (tensor<1x128x64xbf16>, tensor<1x128x64xbf16>) {
    %0 = "top.Input"(%arg0) : (tensor<1x128x64xbf16>) -> tensor<1x128x64xbf16> loc("input_states")
    %1 = "top.Weight"() {tensors = ["gain"], transforms = ["cast(bf16)"]} : () -> tensor<64xbf16> loc("gain")
    %2 = "tpu.Add"(%0, %0) : (tensor<1x128x64xbf16>, tensor<1x128x64xbf16>) -> tensor<1x128x64xbf16> loc("sum")
    %3 = "tpu.RMSNorm"(%2, %1) {eps = 1.0e-6 : f64} : (tensor<1x128x64xbf16>, tensor<64xbf16>) -> tensor<1x128x64xbf16> loc("norm")
    %4 = "tpu.Add"(%3, %2) : (tensor<1x128x64xbf16>, tensor<1x128x64xbf16>) -> tensor<1x128x64xbf16> loc("residual")
    return %2, %4 : tensor<1x128x64xbf16>, tensor<1x128x64xbf16>
  }
}
// after
module @m {
  func.func @main(%arg0: tensor<1x128x64xbf16>) -> (tensor<1x128x64xbf16>, tensor<1x128x64xbf16>) {
    %0 = "top.Input"(%arg0) : (tensor<1x128x64xbf16>) -> tensor<1x128x64xbf16>
    %1 = "top.Weight"() {tensors = ["gain"], transforms = ["cast(bf16)"]} : () -> tensor<64xbf16>
    %2:2 = "tpu.Group"(%0) ({
      %3 = "tpu.Load"(%0) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [128], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [64], id = 0 : i64, n_idx = [0], n_slice = [1], out_addr = 16384 : i64, out_size = 256 : i64, stage = 0 : i64, w_idx = [0], w_slice = [1]}, held = false, lmem_type = 1 : i64} : (tensor<1x128x64xbf16>) -> tensor<1x128x64xbf16>
      %4 = "tpu.Add"(%3, %3) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [128], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [64], id = 1 : i64, n_idx = [0], n_slice = [1], out_addr = 0 : i64, out_size = 256 : i64, stage = 1 : i64, w_idx = [0], w_slice = [1]}} : (tensor<1x128x64xbf16>, tensor<1x128x64xbf16>) -> tensor<1x128x64xbf16>
      %5 = "tpu.Store"(%4) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [128], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [64], id = 2 : i64, n_idx = [0], n_slice = [1], out_addr = 0 : i64, out_size = 256 : i64, stage = 1 : i64, w_idx = [0], w_slice = [1]}} : (tensor<1x128x64xbf16>) -> tensor<1x128x64xbf16>
      %6 = "tpu.Load"(%1) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = false, group_type = 4 : i64, h_idx = [0], h_slice = [64], id = 3 : i64, n_idx = [0], n_slice = [1], out_addr = 33024 : i64, out_size = 128 : i64, stage = 1 : i64, w_idx = [0], w_slice = [1]}, held = false, lmem_type = 0 : i64} : (tensor<64xbf16>) -> tensor<64xbf16>
      %7 = "tpu.RMSNorm"(%4, %6) {eps = 9.9999999999999995E-7 : f64, ginfo = {buffer_addr = 49152 : i64, buffer_size = 1152 : i64, c_idx = [0], c_slice = [128], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [64], id = 4 : i64, n_idx = [0], n_slice = [1], out_addr = 65536 : i64, out_size = 256 : i64, stage = 1 : i64, w_idx = [0], w_slice = [1]}} : (tensor<1x128x64xbf16>, tensor<64xbf16>) -> tensor<1x128x64xbf16>
      %8 = "tpu.Add"(%7, %4) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [128], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [64], id = 5 : i64, n_idx = [0], n_slice = [1], out_addr = 32768 : i64, out_size = 256 : i64, stage = 1 : i64, w_idx = [0], w_slice = [1]}} : (tensor<1x128x64xbf16>, tensor<1x128x64xbf16>) -> tensor<1x128x64xbf16>
      %9 = "tpu.Store"(%8) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [128], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [64], id = 6 : i64, n_idx = [0], n_slice = [1], out_addr = 32768 : i64, out_size = 256 : i64, stage = 2 : i64, w_idx = [0], w_slice = [1]}} : (tensor<1x128x64xbf16>) -> tensor<1x128x64xbf16>
      "tpu.Yield"(%5, %9) {operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<1x128x64xbf16>, tensor<1x128x64xbf16>) -> ()
    }) {csecs = 1 : i64, dsecs = 1 : i64, flow = [-1, 1, 3, 6, -2, 4, 5, 0, 2], group_type = 4 : i64, hsecs = 1 : i64, nsecs = 1 : i64, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, swpipl_stage_num = 3 : i64, wsecs = 1 : i64} : (tensor<1x128x64xbf16>) -> (tensor<1x128x64xbf16>, tensor<1x128x64xbf16>)
    return %2#0, %2#1 : tensor<1x128x64xbf16>, tensor<1x128x64xbf16>
  }
}
