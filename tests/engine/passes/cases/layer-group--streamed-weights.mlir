// options: fuse_weights=1
module @m {
  func.func @main(%arg0: tensor<1x1x128xbf16>, %arg1: tensor<1x1x512xbf16>) -> (tensor<1x1x512xbf16>) {
    %none = "top.None"() : () -> none
    %0 = "top.Input"(%arg0) {} : (tensor<1x1x128xbf16>) -> tensor<1x1x128xbf16> loc("input_0")
    %1 = "top.Weight"() {tensors = ["weight_1"], transforms = []} : () -> tensor<128xbf16> loc("weight_1")
    %2 = "tpu.RMSNorm"(%0, %1) {eps = 1.000000e-06 : f64} : (tensor<1x1x128xbf16>, tensor<128xbf16>) -> tensor<1x1x128xbf16> loc("rmsnorm_2")
    %3 = "top.Weight"() {tensors = ["weight_3"], transforms = []} : () -> tensor<512x64xui8> loc("weight_3")
    %4 = "top.Weight"() {tensors = ["weight_4"], transforms = []} : () -> tensor<64x8x2xbf16> loc("weight_4")
    %5 = "top.Weight"() {tensors = ["weight_5"], transforms = []} : () -> tensor<64x8x2xui8> loc("weight_5")
    %6 = "top.Weight"() {tensors = ["weight_6"], transforms = []} : () -> tensor<512xbf16> loc("weight_6")
    %7 = "tpu.A16MatMul"(%2, %3, %4, %5, %6) {q_group_size = 64 : i64, weight_bits = 4 : i64, w_transpose = true} : (tensor<1x1x128xbf16>, tensor<512x64xui8>, tensor<64x8x2xbf16>, tensor<64x8x2xui8>, tensor<512xbf16>) -> tensor<1x1x512xbf16> loc("a16matmul_7")
    %8 = "top.Input"(%arg1) {} : (tensor<1x1x512xbf16>) -> tensor<1x1x512xbf16> loc("input_8")
    %9 = "tpu.Add"(%8, %7) {} : (tensor<1x1x512xbf16>, tensor<1x1x512xbf16>) -> tensor<1x1x512xbf16> loc("add_9")
    return %9 : tensor<1x1x512xbf16>
  }
}
// after
module @m {
  func.func @main(%arg0: tensor<1x1x128xbf16>, %arg1: tensor<1x1x512xbf16>) -> tensor<1x1x512xbf16> {
    %0 = "top.None"() : () -> none
    %1 = "top.Input"(%arg0) : (tensor<1x1x128xbf16>) -> tensor<1x1x128xbf16>
    %2 = "top.Weight"() {tensors = ["weight_1"], transforms = []} : () -> tensor<128xbf16>
    %3 = "top.Weight"() {tensors = ["weight_3"], transforms = []} : () -> tensor<512x64xui8>
    %4 = "top.Weight"() {tensors = ["weight_4"], transforms = []} : () -> tensor<64x8x2xbf16>
    %5 = "top.Weight"() {tensors = ["weight_5"], transforms = []} : () -> tensor<64x8x2xui8>
    %6 = "top.Weight"() {tensors = ["weight_6"], transforms = []} : () -> tensor<512xbf16>
    %7 = "top.Input"(%arg1) : (tensor<1x1x512xbf16>) -> tensor<1x1x512xbf16>
    %8 = "tpu.Group"(%1, %7) ({
      %9 = "tpu.Load"(%1) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 16 : i64, h_idx = [0], h_slice = [1], id = 0 : i64, n_idx = [0], n_slice = [1], out_addr = 16384 : i64, out_size = 256 : i64, stage = 0 : i64, w_idx = [0], w_slice = [128]}, held = false, lmem_type = 1 : i64} : (tensor<1x1x128xbf16>) -> tensor<1x1x128xbf16>
      %10 = "tpu.Load"(%2) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 16 : i64, h_idx = [0], h_slice = [1], id = 1 : i64, n_idx = [0], n_slice = [1], out_addr = 16640 : i64, out_size = 256 : i64, stage = 0 : i64, w_idx = [0], w_slice = [128]}, held = false, lmem_type = 0 : i64} : (tensor<128xbf16>) -> tensor<128xbf16>
      %11 = "tpu.RMSNorm"(%9, %10) {eps = 9.9999999999999995E-7 : f64, ginfo = {buffer_addr = 245760 : i64, buffer_size = 1088 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 16 : i64, h_idx = [0], h_slice = [1], id = 2 : i64, n_idx = [0], n_slice = [1], out_addr = 32768 : i64, out_size = 256 : i64, stage = 0 : i64, w_idx = [0], w_slice = [128]}} : (tensor<1x1x128xbf16>, tensor<128xbf16>) -> tensor<1x1x128xbf16>
      %12 = "tpu.Load"(%3) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0, 256], c_slice = [256, 256], d_idx = [0], d_slice = [1], eu_align = true, group_type = 16 : i64, h_idx = [0], h_slice = [1], id = 3 : i64, n_idx = [0], n_slice = [1], out_addr = 229376 : i64, out_size = 256 : i64, stage = 0 : i64, tile_addr = [229376, 212992], w_idx = [0], w_slice = [64]}, held = false, lmem_type = 0 : i64} : (tensor<512x64xui8>) -> tensor<512x64xui8>
      %13 = "tpu.Load"(%4) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [64], d_idx = [0], d_slice = [1], eu_align = true, group_type = 16 : i64, h_idx = [0], h_slice = [8], id = 5 : i64, n_idx = [0], n_slice = [1], out_addr = 2048 : i64, out_size = 64 : i64, stage = 0 : i64, w_idx = [0], w_slice = [2]}, held = false, lmem_type = 0 : i64} : (tensor<64x8x2xbf16>) -> tensor<64x8x2xbf16>
      %14 = "tpu.Load"(%5) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [64], d_idx = [0], d_slice = [1], eu_align = true, group_type = 16 : i64, h_idx = [0], h_slice = [8], id = 6 : i64, n_idx = [0], n_slice = [1], out_addr = 2112 : i64, out_size = 64 : i64, stage = 0 : i64, w_idx = [0], w_slice = [2]}, held = false, lmem_type = 0 : i64} : (tensor<64x8x2xui8>) -> tensor<64x8x2xui8>
      %15 = "tpu.Load"(%6) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 16 : i64, h_idx = [0], h_slice = [1], id = 7 : i64, n_idx = [0], n_slice = [1], out_addr = 229632 : i64, out_size = 512 : i64, stage = 0 : i64, tile_addr = [229632, 213248], w_idx = [0, 256], w_slice = [256, 256]}, held = false, lmem_type = 0 : i64} : (tensor<512xbf16>) -> tensor<512xbf16>
      %16 = "tpu.A16MatMul"(%11, %12, %13, %14, %15) {ginfo = {buffer_addr = 245760 : i64, buffer_size = 2176 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 16 : i64, h_idx = [0], h_slice = [1], id = 9 : i64, n_idx = [0], n_slice = [1], out_addr = 1024 : i64, out_size = 512 : i64, stage = 0 : i64, tile_addr = [1024], w_idx = [0, 256], w_slice = [256, 256]}, q_group_size = 64 : i64, w_transpose = true, weight_bits = 4 : i64} : (tensor<1x1x128xbf16>, tensor<512x64xui8>, tensor<64x8x2xbf16>, tensor<64x8x2xui8>, tensor<512xbf16>) -> tensor<1x1x512xbf16>
      %17 = "tpu.Load"(%7) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 16 : i64, h_idx = [0], h_slice = [1], id = 11 : i64, n_idx = [0], n_slice = [1], out_addr = 0 : i64, out_size = 1024 : i64, stage = 0 : i64, w_idx = [0], w_slice = [512]}, held = false, lmem_type = 1 : i64} : (tensor<1x1x512xbf16>) -> tensor<1x1x512xbf16>
      %18 = "tpu.Add"(%17, %16) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 16 : i64, h_idx = [0], h_slice = [1], id = 12 : i64, n_idx = [0], n_slice = [1], out_addr = 16384 : i64, out_size = 512 : i64, stage = 0 : i64, tile_addr = [16384, 1536], w_idx = [0, 256], w_slice = [256, 256]}} : (tensor<1x1x512xbf16>, tensor<1x1x512xbf16>) -> tensor<1x1x512xbf16>
      %19 = "tpu.Store"(%18) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 16 : i64, h_idx = [0], h_slice = [1], id = 14 : i64, n_idx = [0], n_slice = [1], out_addr = 16384 : i64, out_size = 512 : i64, stage = 0 : i64, tile_addr = [16384, 1536], w_idx = [0, 256], w_slice = [256, 256]}} : (tensor<1x1x512xbf16>) -> tensor<1x1x512xbf16>
      "tpu.Yield"(%19) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<1x1x512xbf16>) -> ()
    }) {csecs = 1 : i64, dsecs = 1 : i64, flow = [-1, 0, 1, -2, 2, 3, 5, 6, 7, 11, -3, 9, 12, 4, 8, -4, 10, 13, 14, -5, 15], group_type = 16 : i64, hsecs = 1 : i64, nsecs = 1 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, row_idx = [0], swpipl_stage_num = 1 : i64, wsecs = 1 : i64} : (tensor<1x1x128xbf16>, tensor<1x1x512xbf16>) -> tensor<1x1x512xbf16>
    return %8 : tensor<1x1x512xbf16>
  }
}
