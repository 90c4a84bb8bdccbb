// SPDX-License-Identifier: Apache-2.0

// Command fabric runs the simulated fabric of tests/machines/ibsim until its standard input ends. The lines of the standard
// input are commands for ibsim. It prints the directory of the tools, for --fabric.tools.
//
//	go run ./tests/machines/ibsim/cmd/fabric -leaves 8 -hosts 8 -spines 4
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/accelscope/accelscope/tests/machines/ibsim"
)

func main() {
	leaves := flag.Int("leaves", 8, "leaf switches")
	hosts := flag.Int("hosts", 8, "hosts of each leaf")
	spines := flag.Int("spines", 4, "spine switches")
	flag.Parse()
	if err := run(ibsim.FatTree(*leaves, *hosts, *spines)); err != nil {
		log.Fatal(err)
	}
}

func run(net *ibsim.Net) (err error) {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	f, err := ibsim.Start(ctx, ibsim.Options{Net: net.String(), Host: net.Nodes[net.Find("host0 mlx5_0")].ID()})
	if err != nil {
		return err
	}
	defer func() {
		if closed := f.Close(); err == nil {
			err = closed
		}
	}()
	fmt.Println(f.Tools)
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(os.Stdin); s.Scan(); {
			lines <- s.Text()
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case line, more := <-lines:
			if !more {
				return nil
			}
			reply, err := f.Console(line)
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
			fmt.Print(reply)
		}
	}
}
