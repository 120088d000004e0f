package clientlib

import (
	"context"

	"google.golang.org/protobuf/proto"
)

// Abandoned is the choice of what to do when an earlier attempt at the same intent was abandoned, so that nobody knows
// whether its effect happened. Make one with [Recover], [Rerun] or [Refuse]. The zero value is no choice, and is refused
// wherever one is asked for.
type Abandoned struct {
	choice choice
	hook   RecoverFunc
}

type choice int

const (
	undecided choice = iota
	choiceRecover
	choiceRerun
	choiceRefuse
)

// RecoverFunc finds out what became of earlier attempts: it asks the systems downstream "does charge K exist?", with
// claim.Ref.Key, and says what it found. It must not do the work itself. Its context ends as that of the work would. An
// error means that it could not find out; the claim is given up and the caller is told [ErrAbandoned].
type RecoverFunc func(ctx context.Context, claim Claim) (Finding, error)

// Recover asks hook first, and then settles the intent with what it found, or runs the work. It is right where the effect is
// in a system that can be asked.
func Recover(hook RecoverFunc) Abandoned { return Abandoned{choice: choiceRecover, hook: hook} }

// Rerun runs the work again. It is right where the work is safe to repeat by itself: because the key and the fence go on to
// a system that knows them, as a guarded server does, or because doing it twice is doing it once.
func Rerun() Abandoned { return Abandoned{choice: choiceRerun} }

// Refuse does not run the work: the caller is told [ErrAbandoned], until an operator settles or releases the entry. It is
// right where a second effect is worse than none. Where an operator has released the entry, the work is run.
//
// Each refused attempt counts towards the policy's max_attempts; with on_abandoned HOLD the ledger refuses by itself.
func Refuse() Abandoned { return Abandoned{choice: choiceRefuse} }

// Chosen says whether a choice was made: the zero value is none.
func (a Abandoned) Chosen() bool { return a.choice != undecided }

func (a Abandoned) validate() error {
	switch {
	case a.choice == undecided:
		return invalidConfig("say what becomes of abandoned attempts: Recover(hook), Rerun() or Refuse(); there is no default")
	case a.choice == choiceRecover && a.hook == nil:
		return invalidConfig("Recover needs a hook that finds out what became of an attempt")
	}
	return nil
}

// Finding is what a RecoverFunc found out. The zero value says that it did not.
type Finding struct {
	kind     findingKind
	response Response
	message  proto.Message
	err      error
}

type findingKind int

const (
	foundNothingOut findingKind = iota
	foundHappened
	foundFailed
	foundNotHappened
)

// Happened says that the effect is there, and what its answer is.
func Happened(answer Response) Finding { return Finding{kind: foundHappened, response: answer} }

// HappenedWith says that the effect is there, and what the method's answer is. For guarded gRPC methods.
func HappenedWith(answer proto.Message) Finding { return Finding{kind: foundHappened, message: answer} }

// FailedFinally says that the work failed for good, and with what. A nil err counts as not having found out.
func FailedFinally(err error) Finding {
	if err == nil {
		return Finding{}
	}
	return Finding{kind: foundFailed, err: err}
}

// DidNotHappen says that the effect is not there and that no earlier attempt can still bring it about. The work is run.
func DidNotHappen() Finding { return Finding{kind: foundNotHappened} }
