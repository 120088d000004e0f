//go:build !linux

package sqlitestore

import "os"

// dataSync makes durable what is in the file.
func dataSync(file *os.File) error { return file.Sync() }
