// Package layout holds the rules of the source tree as a test: which package may import what, and which names say nothing. It has no
// code of its own.
package layout
