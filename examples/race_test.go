//go:build race

package examples_test

func init() { buildArgs = append(buildArgs, "-race") } // the real programs are watched as well
