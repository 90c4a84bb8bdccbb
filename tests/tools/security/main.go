// SPDX-License-Identifier: Apache-2.0

// Command security looks for known vulnerabilities in the code that the program calls, in a copy of Go's vulnerability database
// (https://vuln.go.dev/vulndb.zip, unpacked). It needs no network. It first shows that a scan finds a vulnerability that is made up.
//
//	go run ./tests/tools/security -govulncheck PATH [-database DIR]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// found is govulncheck's exit status if the code calls vulnerable code.
const found = 3

// madeUp is a database with one vulnerability, in a function that pkg/source/node calls.
var madeUp = map[string]string{
	"index/db.json": `{"modified": "2000-01-01T00:00:00Z"}`,
	"index/modules.json": `[{"path": "github.com/prometheus/procfs",
		"vulns": [{"id": "GO-2000-0001", "modified": "2000-01-01T00:00:00Z"}]}]`,
	"ID/GO-2000-0001.json": `{"schema_version": "1.3.1", "id": "GO-2000-0001", "summary": "made up",
		"modified": "2000-01-01T00:00:00Z", "published": "2000-01-01T00:00:00Z",
		"affected": [{"package": {"name": "github.com/prometheus/procfs", "ecosystem": "Go"},
			"ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}]}],
			"ecosystem_specific": {"imports": [{"path": "github.com/prometheus/procfs", "symbols": ["NewFS"]}]}}],
		"database_specific": {"url": "https://pkg.go.dev/vuln/GO-2000-0001"}}`,
}

func main() {
	tool := flag.String("govulncheck", "govulncheck", "the program")
	database := flag.String("database", "", "directory with a copy of the vulnerability database")
	flag.Parse()
	if err := run(*tool, *database); err != nil {
		fmt.Fprintln(os.Stderr, "security:", err)
		os.Exit(1)
	}
}

func run(tool, database string) error {
	dir, err := os.MkdirTemp("", "security")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for name, text := range madeUp {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	if status, err := scan(tool, dir, io.Discard, "./pkg/source/node"); status != found {
		return fmt.Errorf("the vulnerability that is made up is not found: status %d: %w", status, err)
	}
	if database == "" {
		fmt.Println("known vulnerabilities are not looked for: no copy of the database (VULNDB=DIR)")
		return nil
	}
	if _, err := os.Stat(filepath.Join(database, "index/db.json")); err != nil {
		return fmt.Errorf("not a copy of the vulnerability database: %w", err)
	}
	_, err = scan(tool, database, os.Stdout, "./cmd/...", "./pkg/...")
	return err
}

func scan(tool, database string, out io.Writer, packages ...string) (status int, err error) {
	database, err = filepath.Abs(database)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := child.Command(ctx, tool, append([]string{"-db", "file://" + database}, packages...)...)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		status = exit.ExitCode()
	}
	return status, err
}
