package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemd/idemd/ledger"
)

// settingCases: small named values that all daemons share, under compare-and-swap.
func settingCases() []testCase {
	return []testCase{
		{"a kind without settings is an empty list", func(b *bench) { b.sameSettings("policy") }},
		{"a setting is created once, written over its revision, and stamped by the store's clock", settingLife},
		{"a setting is not written over another revision", settingRevisions},
		{"a setting is deleted at its revision only, and its name is free again", settingDeleted},
		{"settings are kept by kind and listed by name, in order of their bytes", settingsListed},
		{"names and bodies of settings come back as they are, the empty ones too", settingTexts},
		{"of many that create a setting at once one does", settingCreateRace},
		{"of many that write over the same revision of a setting one does", settingWriteRace},
		{"a setting written through one handle is seen through another at once", settingSeenElsewhere},
	}
}

func (b *bench) settings(kind string) []ledger.Setting {
	b.Helper()
	got, err := b.Store.Settings(b.ctx, kind)
	if err != nil {
		b.Fatalf("Settings: %v", err)
	}
	return got.List
}

// sameSettings checks what a kind holds, in order.
func (b *bench) sameSettings(kind string, want ...ledger.Setting) {
	b.Helper()
	got := b.settings(kind)
	if len(got) != len(want) {
		b.Fatalf("%q has %d settings, want %d", kind, len(got), len(want))
	}
	for i, s := range got {
		w := want[i]
		if s.Kind != w.Kind || s.Name != w.Name || s.Revision != w.Revision || s.UpdatedAt != w.UpdatedAt || !bytes.Equal(s.Body, w.Body) {
			b.Errorf("setting %d is %s, want %s", i, showSetting(s), showSetting(w))
		}
	}
}

func showSetting(s ledger.Setting) string {
	return fmt.Sprintf("%q/%q revision %d of %d bytes at %d", s.Kind, s.Name, s.Revision, len(s.Body), s.UpdatedAt)
}

// setting writes and checks whether it was done.
func (b *bench) setting(s ledger.Setting, expect int64, want bool) {
	b.Helper()
	done, err := putSetting(b.ctx, b.Store, s, expect)
	if err != nil {
		b.Fatalf("PutSetting: %v", err)
	}
	if done != want {
		b.Errorf("PutSetting of %s over revision %d is %t, want %t", showSetting(s), expect, done, want)
	}
}

func putSetting(ctx context.Context, store ledger.Store, s ledger.Setting, expect int64) (bool, error) {
	for range maxContended {
		done, err := store.PutSetting(ctx, s, expect)
		if !errors.Is(err, ledger.ErrContended) {
			return done, err
		}
	}
	return false, fmt.Errorf("contended %d times in a row", maxContended)
}

func settingLife(b *bench) {
	s := ledger.Setting{Kind: "policy", Name: "a", Body: []byte("one"), Revision: 40, UpdatedAt: 41}
	for revision := range int64(5) {
		b.Clock.Advance(time.Second)
		s.Body = fmt.Appendf(nil, "value %d", revision)
		b.setting(s, revision, true)
		b.sameSettings("policy", ledger.Setting{
			Kind: "policy", Name: "a", Body: s.Body, Revision: revision + 1, UpdatedAt: b.Clock.Now(),
		})
	}
}

func settingRevisions(b *bench) {
	s := ledger.Setting{Kind: "policy", Name: "a", Body: []byte("x")}
	b.setting(s, 1, false)
	b.setting(s, 7, false)
	b.sameSettings("policy")
	b.setting(s, 0, true)
	b.setting(s, 1, true)
	want := ledger.Setting{Kind: "policy", Name: "a", Body: []byte("x"), Revision: 2, UpdatedAt: b.Clock.Now()}
	b.Clock.Advance(time.Second)
	for _, expect := range []int64{0, 1, 3, -1} {
		b.setting(ledger.Setting{Kind: "policy", Name: "a", Body: []byte("y")}, expect, false)
		b.sameSettings("policy", want)
	}
}

func settingDeleted(b *bench) {
	s := ledger.Setting{Kind: "policy", Name: "a", Body: []byte("x")}
	gone := ledger.Setting{Kind: "policy", Name: "a"}
	b.setting(gone, 1, false)
	b.setting(s, 0, true)
	b.setting(s, 1, true)
	for _, expect := range []int64{0, 1, 3} {
		b.setting(gone, expect, false)
	}
	if got := b.settings("policy"); len(got) != 1 {
		b.Fatalf("a delete at the wrong revision left %d settings", len(got))
	}
	b.setting(gone, 2, true)
	b.sameSettings("policy")
	b.setting(s, 2, false)
	b.setting(s, 0, true)
	// A recreated setting may start again or go on counting; whichever, its revision is what the next write names.
	again := b.settings("policy")
	if len(again) != 1 || again[0].Revision < 1 {
		b.Fatalf("the setting was created again as %v", again)
	}
	b.setting(s, again[0].Revision, true)
}

func settingsListed(b *bench) {
	names := []string{"", "a", "A", "a/b", "a:b", "é", "e\u0301", "😀", "\U0010ffff", "\uffee", " ", "*", "z", "a\nb", "a\n", "\n", "*\n*"}
	b.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	want := map[string][]ledger.Setting{}
	for _, kind := range []string{"policy", "Policy", "policy ", "policy2"} {
		for _, name := range names {
			s := ledger.Setting{Kind: kind, Name: name, Body: []byte(kind + "=" + name)}
			b.setting(s, 0, true)
			s.Revision, s.UpdatedAt = 1, b.Clock.Now()
			want[kind] = append(want[kind], s)
		}
	}
	for kind, list := range want {
		slices.SortFunc(list, func(x, y ledger.Setting) int { return strings.Compare(x.Name, y.Name) })
		b.sameSettings(kind, list...)
	}
}

func settingTexts(b *bench) {
	for i := range 40 {
		s := ledger.Setting{
			Kind: fmt.Sprintf("kind %d", i), Name: b.text(ledger.MaxTenantChars + ledger.MaxOperationChars + 1), Body: b.bytes(b.IntN(3000)),
		}
		if i == 0 {
			s.Body = []byte{}
		}
		given := bytes.Clone(s.Body)
		b.setting(s, 0, true)
		for j := range s.Body {
			s.Body[j] ^= 0xff
		}
		s.Body, s.Revision, s.UpdatedAt = given, 1, b.Clock.Now()
		b.sameSettings(s.Kind, s)
		for _, got := range b.settings(s.Kind) {
			for j := range got.Body {
				got.Body[j] ^= 0xff
			}
		}
		b.sameSettings(s.Kind, s)
	}
}

// settingRace lets many write the same setting over the same revision and returns who did.
func (b *bench) settingRace(kind string, racers int, expect int64) []int {
	b.Helper()
	stores := []ledger.Store{b.Store, b.another()}
	var mu sync.Mutex
	var winners []int
	b.together(racers, func(i int) {
		s := ledger.Setting{Kind: kind, Name: "turn", Body: fmt.Appendf(nil, "racer %d", i)}
		done, err := putSetting(b.ctx, stores[i%2], s, expect)
		if err != nil {
			b.Errorf("PutSetting: %v", err)
		}
		if done {
			mu.Lock()
			winners = append(winners, i)
			mu.Unlock()
		}
	})
	return winners
}

// settingCreateRace repeats the race: a store that looks before it writes can win one by luck.
func settingCreateRace(b *bench) {
	for i := range 10 {
		kind := fmt.Sprintf("sweep %d", i)
		b.oneWins(kind, b.settingRace(kind, 16, 0), 1)
	}
}

func settingWriteRace(b *bench) {
	for revision := range int64(10) {
		b.oneWins("sweep", b.settingRace("sweep", 8, revision), revision+1)
	}
}

func (b *bench) oneWins(kind string, winners []int, revision int64) {
	b.Helper()
	if len(winners) != 1 {
		b.Fatalf("%d racers wrote the setting, want one", len(winners))
	}
	b.sameSettings(kind, ledger.Setting{
		Kind: kind, Name: "turn", Body: fmt.Appendf(nil, "racer %d", winners[0]), Revision: revision, UpdatedAt: b.Clock.Now(),
	})
}

func settingSeenElsewhere(b *bench) {
	other := b.another()
	for revision := range int64(20) {
		b.setting(ledger.Setting{Kind: "policy", Name: "a", Body: fmt.Append(nil, revision)}, revision, true)
		got, err := other.Settings(b.ctx, "policy")
		if err != nil || len(got.List) != 1 || got.List[0].Revision != revision+1 {
			b.Fatalf("after revision %d the other handle lists %v, %v", revision+1, got.List, err)
		}
	}
}

// together runs do for 0 to n-1 at once and waits for all.
func (b *bench) together(n int, do func(i int)) {
	b.Helper()
	var wg sync.WaitGroup
	var ready atomic.Int32
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			if ready.Add(1) == int32(n) {
				close(start)
			}
			<-start
			do(i)
		})
	}
	wg.Wait()
}
