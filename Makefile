# Everything a developer runs. "make help" lists it; nothing here needs a network once the modules are downloaded.

# Tools are Go modules of their own under tools/, so that their dependencies stay out of the daemon's.
BUF       := go tool -modfile=tools/buf/go.mod buf
GOLANGCI  := go tool -modfile=tools/lint/go.mod golangci-lint
BENCHSTAT := go tool -modfile=tools/bench/go.mod benchstat
TESTSUM   := go tool -modfile=tools/test/go.mod gotestsum

# Buf and golangci-lint write caches: keep them in the project. Go's own stays where it is, or every tool would be built
# again, so ask for it before XDG_CACHE_HOME moves it.
export GOCACHE             := $(shell go env GOCACHE)
export XDG_CACHE_HOME      := $(CURDIR)/.cache
export GOLANGCI_LINT_CACHE := $(CURDIR)/.cache/golangci-lint

# What "make breaking" compares with: any git revision.
BASE ?= main

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

## Generated code

.PHONY: generate
generate: ## generate gen/ from proto/, and the examples' code
	$(BUF) generate
	$(BUF) generate --template examples/payments/buf.gen.yaml
	go test ./examples -count=1 -run=TestDescriptorSets -rewrite

.PHONY: check-generate
check-generate: ## fail if generated code is not what the .proto files generate
	@tools/check-unchanged.sh gen tools/check-unchanged.sh examples/payments/gen tools/check-unchanged.sh examples/descriptors \
		$(MAKE) --no-print-directory generate

.PHONY: third-party
third-party: ## print third_party/proto from the descriptors in Go modules
	cd tools/protodump && go run . -out ../../third_party/proto

.PHONY: check-third-party
check-third-party: ## fail if third_party/proto is not what its modules say
	@tools/check-unchanged.sh third_party/proto $(MAKE) --no-print-directory third-party

## Checks

.PHONY: lint-proto
lint-proto: ## check style and format of proto/
	$(BUF) lint
	$(BUF) format --diff --exit-code proto
	$(BUF) format --diff --exit-code examples/payments/proto

.PHONY: breaking
breaking: ## fail if proto/ breaks callers of what BASE (default: main) has
	@tools/breaking.sh $(BASE) $(BUF)

.PHONY: lint-go
lint-go: ## run golangci-lint
	$(GOLANGCI) run --allow-parallel-runners ./...

.PHONY: vet
vet: ## run go vet
	go vet ./...

.PHONY: lint
lint: check-generate check-third-party lint-proto breaking lint-go ## every check that runs no test

## Tests

# Packages to test, and flags for go test: make test PACKAGES=./ledger/... TESTFLAGS=-run=TestC01
PACKAGES  ?= ./...
TESTFLAGS ?=

.PHONY: test
test: lint test-go test-modules ## everything a change must pass: checks, then all tests with the race detector

# gotestsum prints failures whole, and at the end what was skipped and why.
.PHONY: test-go
test-go: ## all Go tests with the race detector
	$(TESTSUM) --format pkgname --format-hide-empty-pkg -- -race -timeout 20m $(TESTFLAGS) $(PACKAGES)

# Modules of their own, so that what they need stays out of the daemon's dependencies and of other users' builds.
MODULES ?= clientlib/sqlidem/watermill clientlib/temporal

.PHONY: test-modules
test-modules: ## vet and test the nested modules, with the race detector
	@set -e; for module in $(MODULES); do echo "$$module:"; (cd $$module && go vet ./... && go test -race -timeout 10m $(TESTFLAGS) ./...); done

.PHONY: test-short
test-short: ## the quick part of the tests, without the race detector
	go test -short $(PACKAGES)

## Proof: the long forms of what "make test" does in small (docs/reliability.md)

.PHONY: prove
prove: ## very long: all of these, one after the other; some three hours
	@set -e; for form in histories sim mutants fuzz day soak; do $(MAKE) $$form; done

# How many times more histories than by default.
SCALE ?= 20

.PHONY: histories
histories: ## long: histories of concurrent clients under faults, checked for linearizability
	PROOF_SCALE=$(SCALE) go test -race -v -count=1 -timeout 6h ./proof/linear

# How many worlds to play.
SEEDS ?= 1000

.PHONY: sim
sim: ## long: whole worlds on virtual time, SEEDS of them, watched by an auditor
	SIM_SEEDS=$(SEEDS) go test -v -count=1 -timeout 24h -run TestWorlds ./proof/sim

# How long to soak.
DURATION ?= 1h

.PHONY: soak
soak: ## long: the daemon at half load for DURATION; says whether memory, goroutines, file handles and latency stay flat
	SOAK=$(DURATION) go test -v -count=1 -timeout 0 -run TestSoak ./proof/load

# How many entries come and go in each hour of the simulated day.
ENTRIES ?= 42000

.PHONY: day
day: ## long: a simulated day in which ENTRIES are begun, swept and forgotten every hour, and what 5,000 waiters cost a Complete
	DAY_ENTRIES=$(ENTRIES) go test -v -count=1 -timeout 24h -run TestC22 -bench C21 -benchtime 20000x ./proof/load

# How long to fuzz each target.
FUZZTIME ?= 60s

.PHONY: fuzz
fuzz: ## long: every fuzz target for FUZZTIME; what it finds is kept in testdata/fuzz of its package
	@set -e; grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9]*' . | sed 's|/[^/]*:func | |' | while read -r dir name; do \
		echo "$$dir $$name:"; go test "$$dir" -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x; done

.PHONY: mutants
mutants: ## long: break the code on purpose, one fault at a time; a test must notice each
	go run ./proof/mutants $(MUTANTS)

## Speed (docs/performance.md)

# Which benchmarks, how often and for how long each time.
BENCH     ?= .
COUNT     ?= 6
BENCHTIME ?= 1s
BENCHED   := ./ledger ./clientlib/fingerprint ./ledger/sqlitestore ./ledger/sqlstore ./server

.PHONY: bench
bench: ## Go benchmarks of the decision table, fingerprints, both stores and the server, for benchstat: make bench >new.out
	@go test -run='^$$' -bench='$(BENCH)' -benchmem -benchtime=$(BENCHTIME) -count=$(COUNT) -timeout=60m $(BENCHED)

.PHONY: benchstat
benchstat: ## compare two outputs of "make bench": make benchstat OLD=old.out NEW=new.out
	@$(BENCHSTAT) $(OLD) $(NEW)

.PHONY: compare
compare: ## long: the daemon beside a bare gRPC echo, a hand-written table and Redis, as tables in Markdown
	@go run ./proof/compare $(COMPARE)

.PHONY: growth
growth: ## very long: speed, memory and disk at five million entries
	@go run ./proof/compare -do growth $(COMPARE)

.PHONY: sweep
sweep: ## very long: what a sweep of a million entries does to callers
	@go run ./proof/compare -do sweep $(COMPARE)

## Build

.PHONY: build
build: ## build bin/idemd, static
	CGO_ENABLED=0 go build -trimpath -o bin/idemd ./cmd/idemd
