//! The kernels of libcomm as they are shipped: PTX, made from `device/` by the program `generate` and checked in,
//! and the arguments that a launch takes. Needs no toolkit and no GPU to build.

pub mod args;
pub mod probe;

/// One image: kernels of one element type, or those of none.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    /// Its element type for kernels that move chunks, `direct_` and the type for those that send straight to the peers
    /// (with `_sm90` for GPUs whose kernels may begin before the last one ended), `broadcast`, `zero_` and the type, or `common`.
    pub name: &'static str,
    /// PTX, NUL-terminated, as the driver wants it.
    pub ptx: &'static str,
}

macro_rules! images {
    ($($name:literal),*) => {
        &[$(Image { name: $name, ptx: concat!(include_str!(concat!("../ptx/", $name, ".ptx")), "\0") }),*]
    };
}

/// All images. PTX 8.0 for compute_70: any driver from 525 on, any GPU from Volta on; for compute_90 where the name
/// says so. `.checked`: those that sum what arrives, and can damage it on purpose.
#[rustfmt::skip]
pub const IMAGES: &[Image] = images![
    "common",
    "probe",
    "f64", "f32", "f16", "bf16", "i8", "u8", "i32", "u32", "i64", "u64",
    "direct_f64", "direct_f32", "direct_f16", "direct_bf16", "direct_i8",
    "direct_u8", "direct_i32", "direct_u32", "direct_i64", "direct_u64",
    "direct_f64_sm90", "direct_f32_sm90", "direct_f16_sm90", "direct_bf16_sm90", "direct_i8_sm90",
    "direct_u8_sm90", "direct_i32_sm90", "direct_u32_sm90", "direct_i64_sm90", "direct_u64_sm90",
    "f64.checked", "f32.checked", "f16.checked", "bf16.checked", "i8.checked",
    "u8.checked", "i32.checked", "u32.checked", "i64.checked", "u64.checked",
    "broadcast", "broadcast_sm90", "broadcast.checked",
    "zero_f64", "zero_f32", "zero_f16", "zero_bf16", "zero_i8",
    "zero_u8", "zero_i32", "zero_u32", "zero_i64", "zero_u64"
];

/// The image of that name.
pub fn image(name: &str) -> Option<Image> {
    IMAGES.iter().copied().find(|image| image.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_is_ptx_8_0_and_has_its_kernels() {
        for Image { name, ptx } in IMAGES {
            let target = if name.ends_with("_sm90") { "sm_90" } else { "sm_70" };
            assert!(ptx.contains(&format!(".version 8.0\n.target {target}\n")), "{name}");
            let direct = name.strip_prefix("direct_").map(|name| name.trim_end_matches("_sm90"));
            let checked = name.strip_suffix(".checked");
            if name.starts_with("broadcast") {
                let kinds = ["ll", "push", "push_any", "ring", "check"];
                assert!(kinds.iter().all(|kind| ptx.contains(&format!(".entry broadcast_{kind}("))), "{name}");
                assert_eq!(ptx.matches("griddepcontrol.wait").count(), if target == "sm_90" { 3 } else { 0 }, "{name}");
                continue;
            }
            if let Some(data_type) = name.strip_prefix("zero_") {
                assert!(["zero", "zero_any"].iter().all(|kind| ptx.contains(&format!(".entry {kind}_{data_type}("))));
                continue;
            }
            let (kinds, data_type): (&[&str], &str) = match (direct, checked) {
                (Some(data_type), _) => (&["ll", "ll_any", "push", "push_any"], data_type),
                (_, Some(data_type)) => (&["ll", "ll_any", "push", "push_any", "copy", "copy_any", "ring"], data_type),
                _ if matches!(*name, "common" | "probe") => (&[], name),
                _ => (&["copy", "copy_any", "ring"], name),
            };
            for kind in kinds {
                assert!(ptx.contains(&format!(".entry {kind}_{data_type}(")), "{kind}_{data_type}");
            }
            // Whoever may begin early waits before anything else, in every kernel.
            assert_eq!(ptx.matches("griddepcontrol.wait").count(), if target == "sm_90" { 4 } else { 0 }, "{name}");
            // A parameter whose address is taken is read from memory.
            assert!(direct.is_none() || !ptx.contains("cvta.param"), "{name}");
        }
        let common = image("common").unwrap().ptx;
        assert!(["copy_flag", "check_send", "check_result"].iter().all(|k| common.contains(&format!(".entry {k}("))));
        let probe = image("probe").unwrap().ptx;
        assert!(["probe_write", "probe_check", "probe_ping"].iter().all(|k| probe.contains(&format!(".entry {k}("))));
        assert!(image("f128").is_none());
    }
}
