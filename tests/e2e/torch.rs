//! An unmodified PyTorch script runs: `init_method="env://"`, with gloo.

use std::path::Path;

use tests::Prun;

/// Debian's Python, which has Debian's python3-torch.
const PYTHON: &str = "/usr/bin/python3";

fn script() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/torch_env.py").display().to_string()
}

#[test]
fn a_torch_script_finds_its_world_and_sums_over_it() {
    let installed = tests::succeeds(&[PYTHON, "-c", "import torch.distributed"]);
    assert!(installed, "{PYTHON} has no torch; tests/packages.sh installs python3-torch");
    let ended = Prun::new()
        .ranks(2)
        .without_env("MASTER_ADDR")
        .without_env("MASTER_PORT")
        .env("OMP_NUM_THREADS", "1")
        .program([PYTHON, &script()])
        .run();
    ended.expect_code(0);
    assert_eq!(
        ended.sorted_lines(),
        ["rank 0 of 2: sum 3.0, gathered [0, 1]", "rank 1 of 2: sum 3.0, gathered [0, 1]"]
    );
}

#[test]
fn a_torch_rank_that_dies_ends_the_others_which_wait_for_it() {
    let ended = Prun::new()
        .ranks(2)
        .options(["--grace", "2s"])
        .env("OMP_NUM_THREADS", "1")
        .program([PYTHON, &script(), "--die"])
        .run();
    ended.expect_code(7).expect_message("rank 1 failed first (exit 7)");
}
