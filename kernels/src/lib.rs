//! The kernels of libcomm as they are shipped: PTX, made from `device/` by the program `generate` and checked in,
//! and the arguments that a launch takes. Needs no toolkit and no GPU to build.

pub mod args;
pub mod probe;

/// One image: the kernels of one element type, or those of none.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    /// The suffix of its kernels' names, e.g. `f32` of `ll_f32`.
    pub name: &'static str,
    /// PTX, NUL-terminated, as the driver wants it.
    pub ptx: &'static str,
}

macro_rules! images {
    ($($name:literal),*) => {
        &[$(Image { name: $name, ptx: concat!(include_str!(concat!("../ptx/", $name, ".ptx")), "\0") }),*]
    };
}

/// All images. PTX 8.0 for compute_70: any driver from 525 on, any GPU from Volta on. `.checked`: those that sum what
/// arrives, and can damage it on purpose.
pub const IMAGES: &[Image] = images![
    "common",
    "probe",
    "f64",
    "f32",
    "f16",
    "bf16",
    "i8",
    "u8",
    "i32",
    "u32",
    "i64",
    "u64",
    "f64.checked",
    "f32.checked",
    "f16.checked",
    "bf16.checked",
    "i8.checked",
    "u8.checked",
    "i32.checked",
    "u32.checked",
    "i64.checked",
    "u64.checked"
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
            assert!(ptx.contains(".version 8.0\n.target sm_70\n"), "{name}");
            let kinds: &[&str] =
                if matches!(*name, "common" | "probe") { &[] } else { &["ll", "ll128", "push", "copy", "ring"] };
            let name = name.trim_end_matches(".checked");
            for kind in kinds {
                assert!(ptx.contains(&format!(".entry {kind}_{name}(")), "{kind}_{name}");
            }
        }
        let common = image("common").unwrap().ptx;
        assert!(["copy_begin", "check_send", "check_result"].iter().all(|k| common.contains(&format!(".entry {k}("))));
        let probe = image("probe").unwrap().ptx;
        assert!(["probe_write", "probe_check", "probe_ping"].iter().all(|k| probe.contains(&format!(".entry {k}("))));
        assert!(image("f128").is_none());
    }
}
