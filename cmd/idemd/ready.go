package main

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// ready is what the ready file says. With port 0 it is how others learn the port.
type ready struct {
	GRPC    string `json:"grpc"`
	HTTP    string `json:"http"`
	Store   string `json:"store"`
	Version string `json:"version"`
	PID     int    `json:"pid"`
}

// writeReadyFile writes the file whole or not at all: whoever waits for it reads it the moment it is there.
func writeReadyFile(path string, r ready) error {
	if path == "" {
		return nil
	}
	content, err := json.Marshal(r)
	if err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = temporary.Write(append(content, '\n'))
	if closeErr := temporary.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		_ = os.Remove(temporary.Name())
	}
	return err
}
