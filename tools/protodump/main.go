// Protodump prints the .proto files that idemd's own protos import.
//
// They exist in Go modules only as compiled descriptors. Printing them once and committing the text lets
// buf compile proto/ without a network and without the Buf Schema Registry. Comments do not survive in
// descriptors; the published originals have them.
//
// Usage: protodump -out third_party/proto
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"github.com/jhump/protoreflect/v2/protoprint"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// apacheNotice is the notice that every file printed here carries upstream, below its copyright line.
const apacheNotice = `//
// Licensed under the Apache License, Version 2.0 (the "License");
// you may not use this file except in compliance with the License.
// You may obtain a copy of the License at
//
//     http://www.apache.org/licenses/LICENSE-2.0
//
// Unless required by applicable law or agreed to in writing, software
// distributed under the License is distributed on an "AS IS" BASIS,
// WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
// See the License for the specific language governing permissions and
// limitations under the License.

// Printed from the descriptor in the Go module %s by tools/protodump.
// DO NOT EDIT: run "make third-party".

`

// source is one file to print, and whose it is.
type source struct {
	copyright string
	file      protoreflect.FileDescriptor
	module    string
}

func sources() []source {
	const (
		buf          = "Copyright 2023-2026 Buf Technologies, Inc."
		bufModule    = "buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go"
		google       = "Copyright 2026 Google LLC"
		googleModule = "google.golang.org/genproto/googleapis/rpc"
	)
	return []source{
		{copyright: buf, file: validate.File_buf_validate_validate_proto, module: bufModule},
		{copyright: google, file: code.File_google_rpc_code_proto, module: googleModule},
		{copyright: google, file: errdetails.File_google_rpc_error_details_proto, module: googleModule},
		{copyright: google, file: status.File_google_rpc_status_proto, module: googleModule},
	}
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("protodump: ")
	out := flag.String("out", "", "folder to write the files into, each under its import path")
	flag.Parse()
	if *out == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	var errs []error
	for _, s := range sources() {
		if err := write(*out, s); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.file.Path(), err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		log.Fatal(err)
	}
}

func write(folder string, s source) error {
	var text bytes.Buffer
	fmt.Fprintf(&text, "// %s\n"+apacheNotice, s.copyright, s.module)
	printer := protoprint.Printer{Indent: "  "}
	if err := printer.PrintProtoFile(s.file, &text); err != nil {
		return err
	}
	path := filepath.Join(folder, filepath.FromSlash(s.file.Path()))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if text.Bytes()[text.Len()-1] != '\n' {
		text.WriteByte('\n')
	}
	return os.WriteFile(path, text.Bytes(), 0o644)
}
