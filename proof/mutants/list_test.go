package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestEveryMutantCanBeMade: the places are still there, each once. What becomes of the mutants is for "make mutants".
func TestEveryMutantCanBeMade(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, m := range mutants {
		if names[m.name] {
			t.Errorf("two mutants are called %q", m.name)
		}
		names[m.name] = true
		whole, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(m.file)))
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err := m.apply(whole); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
	if len(mutants) < 25 {
		t.Errorf("%d mutants are few", len(mutants))
	}
}
