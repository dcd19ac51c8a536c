# Thin over cargo: every target is one or a few commands that also work by hand.

CARGO ?= cargo
TARGET = $(or $(CARGO_TARGET_DIR),target)
RELEASE = $(TARGET)/release

.PHONY: demo build test lint unit loom e2e bench soak fuzz packages clean

# The main job: four processes train one network, gradients averaged through shared memory.
demo: build
	$(RELEASE)/prun -n 4 $(RELEASE)/train

build:
	$(CARGO) build --release --workspace

# Everything that must hold before a change lands. Installs what it needs by name.
test: packages lint unit loom e2e

packages:
	tests/packages.sh

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

unit:
	$(CARGO) test --workspace --exclude tests

loom:
	RUSTFLAGS="--cfg loom" $(CARGO) test -p libcomm --release --lib --target-dir $(TARGET)/loom loom

e2e:
	$(CARGO) build --workspace
	$(CARGO) test -p tests

# Figures, with the peers in the same run. Nothing here is a test.
bench: build
	python3 tests/peers/launch.py
	python3 tests/peers/output.py
	python3 tests/peers/behaviour.py

# Long runs: chaos, a thousand jobs in a row, a thousand flipped bits.
soak: build
	$(CARGO) test -p tests --release -- --ignored --nocapture

clean:
	$(CARGO) clean
