//go:build race

package main

func init() { buildArgs = append(buildArgs, "-race") } // the real program is watched as well
