//! Makes `ptx/` from `device/` with NVRTC 12.0.140, whose PTX 8.0 every driver from 525 on reads.
//!
//! `generate` writes the files; `generate --check` compares them byte for byte and exits with 1 if one is stale.
//! libnvrtc is looked for as any shared library is: LD_LIBRARY_PATH names its folder.

use anyhow::{Context, bail};
use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};
use std::path::{Path, PathBuf};

/// The suffix of the kernels' names, and the element type in CUDA C++.
const TYPES: [(&str, &str); 10] = [
    ("f64", "double"),
    ("f32", "float"),
    ("f16", "f16"),
    ("bf16", "bf16"),
    ("i8", "i8"),
    ("u8", "u8"),
    ("i32", "i32"),
    ("u32", "u32"),
    ("i64", "i64"),
    ("u64", "u64"),
];

fn main() -> anyhow::Result<()> {
    let check = std::env::args().nth(1).as_deref() == Some("--check");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut stale = Vec::new();
    let mut images = vec![
        ("common".to_owned(), "common.cu", "compute_70", vec![]),
        ("probe".to_owned(), "probe.cu", "compute_70", vec![]),
    ];
    for (name, element) in TYPES {
        let defines = vec![format!("-DELEMENT={element}"), format!("-DNAME={name}")];
        let checked = [defines.clone(), vec!["-DCHECKED=1".to_owned()]].concat();
        images.push((name.to_owned(), "allreduce.cu", "compute_70", defines.clone()));
        images.push((format!("direct_{name}"), "direct.cu", "compute_70", defines.clone()));
        images.push((format!("direct_{name}_sm90"), "direct.cu", "compute_90", defines));
        images.push((format!("{name}.checked"), "checked.cu", "compute_70", checked));
    }
    // Last, since what the compiler numbers goes on from image to image.
    images.extend([
        ("broadcast".to_owned(), "broadcast.cu", "compute_70", vec![]),
        ("broadcast_sm90".to_owned(), "broadcast.cu", "compute_90", vec![]),
        ("broadcast.checked".to_owned(), "broadcast.cu", "compute_70", vec!["-DCHECKED=1".to_owned()]),
    ]);
    for (name, element) in TYPES {
        let defines = vec![format!("-DELEMENT={element}"), format!("-DNAME={name}")];
        images.push((format!("zero_{name}"), "zero.cu", "compute_70", defines));
    }
    for (name, source, arch, defines) in images {
        let ptx = compile(root, source, arch, defines)?;
        let path = root.join("ptx").join(format!("{name}.ptx"));
        if !check {
            std::fs::write(&path, ptx).with_context(|| format!("cannot write {}", path.display()))?;
        } else if std::fs::read_to_string(&path).ok().as_deref() != Some(ptx.as_str()) {
            stale.push(path);
        }
    }
    if !stale.is_empty() {
        bail!("not what device/ compiles to now: {}; run `make ptx`", list(&stale));
    }
    Ok(())
}

fn compile(root: &Path, source: &str, arch: &'static str, mut options: Vec<String>) -> anyhow::Result<String> {
    let device = root.join("device");
    let text = std::fs::read_to_string(device.join(source)).with_context(|| format!("cannot read {source}"))?;
    options.extend(["--std=c++17".to_owned(), "-default-device".to_owned()]);
    let options = CompileOptions {
        name: Some(source.to_owned()), // part of the output
        arch: Some(arch),
        include_paths: vec![device.to_string_lossy().into_owned()],
        options,
        ..Default::default()
    };
    let ptx = compile_ptx_with_opts(text, options).with_context(|| format!("cannot compile {source}"))?;
    Ok(ptx.to_src())
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
