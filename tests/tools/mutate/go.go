// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// Environment variables of the program that gremlins runs as go.
const (
	choiceVar = "ACCELSCOPE_CHOICE"      // the choice, in JSON
	pathVar   = "ACCELSCOPE_MUTATE_PATH" // PATH without that program
)

// choice is the part of the mutants that is tried.
type choice struct {
	Seed  uint64
	Share float64
}

// has reports whether a mutant is tried: by its text, because gremlins does not say which mutant it runs.
func (c choice) has(dir string) (bool, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, c.Seed)
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return false, err
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return false, err
		}
		sum.Write(text)
	}
	return float64(binary.BigEndian.Uint32(sum.Sum(nil))) < c.Share*(1<<32), nil
}

// gremlins takes a mutant for not viable if go exits with notBuilt. go itself exits with 1 if a test fails, and if it does not build,
// which gremlins would take for killed.
const notBuilt = 2

// beGo is go, as gremlins runs it. It leaves out mutants that are not chosen or do not build.
func beGo() {
	status, err := leaveOut(os.Args[1:])
	if err == nil && status < 0 {
		err = syscall.Exec(realGo(), os.Args, os.Environ()) // so that a time limit ends go itself
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate, as go:", err)
		status = 3 // gremlins would take 1 for killed
	}
	os.Exit(status)
}

func realGo() string {
	os.Setenv("PATH", os.Getenv(pathVar))
	path, err := exec.LookPath("go")
	if err != nil {
		return "go"
	}
	return path
}

// leaveOut returns the exit status of a call that go itself shall not execute, or -1.
func leaveOut(args []string) (int, error) {
	if slices.Equal(args, []string{"mod", "download"}) {
		return 0, nil // would download what no package needs
	}
	if i := slices.Index(args, "-coverprofile"); i >= 0 {
		return coverAll(args, args[i+1])
	}
	if !slices.Contains(args, "-failfast") {
		return -1, nil // not the test of a mutant
	}
	var c choice
	if err := json.Unmarshal([]byte(os.Getenv(choiceVar)), &c); err != nil {
		return 0, err
	}
	chosen, err := c.has(".")
	if err != nil {
		return 0, err
	}
	if !chosen || child.Command(context.Background(), realGo(), "build", args[len(args)-1]).Run() != nil {
		return notBuilt, nil
	}
	return -1, nil
}

// coverAll makes a profile in which all code is covered, because gremlins tries no other code. go's own profile lacks the conditions of
// switch statements, and constants.
func coverAll(args []string, profile string) (int, error) {
	test := child.Command(context.Background(), realGo(), args...)
	test.Stdout, test.Stderr = os.Stdout, os.Stderr
	if err := test.Run(); err != nil {
		return 0, err
	}
	text, err := os.ReadFile(profile)
	if err != nil {
		return 0, err
	}
	files := map[string]bool{}
	for _, m := range profiled.FindAllStringSubmatch(string(text), -1) {
		files[m[1]] = true
	}
	text = []byte("mode: set\n")
	for f := range files {
		text = fmt.Appendf(text, "%s:0.0,%d.0 1 1\n", f, math.MaxInt32)
	}
	return 0, os.WriteFile(profile, text, 0o644)
}

// profiled is a line of a profile: example.com/module/file.go:4.40,6.2 1 1.
var profiled = regexp.MustCompile(`(?m)^(.+\.go):[0-9.,]+ `)
