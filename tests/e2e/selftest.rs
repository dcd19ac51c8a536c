//! `prun selftest` on a machine without a GPU, and when it is asked for what is not there.

use tests::Prun;

#[test]
fn what_the_machine_can_is_tried_and_the_rest_is_skipped_with_a_reason() {
    let ended = Prun::new().options(["selftest", "--only", "host-mismatch,host-killed,virtual"]).run();
    let text = ended.expect_code(0).out();
    for line in ["host-mismatch  passed", "host-killed    passed"] {
        assert!(text.contains(line), "{text}");
    }
    let skipped = text.contains("needs 1 GPU, found 0 (") && text.ends_with("2 passed, 0 failed, 1 skipped\n");
    assert!(skipped || text.ends_with("3 passed, 0 failed, 0 skipped\n"), "{text}");
}

#[test]
fn an_unknown_case_is_refused() {
    let ended = Prun::new().options(["selftest", "--only", "nothing"]).run();
    ended.expect_code(125).expect_message("there is no case `nothing`").expect_message("try: `prun selftest --list`");
}
