// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"

	"github.com/accelscope/accelscope/pkg/boundedfile"
)

// maxConfigSize limits the size of a configuration file.
const maxConfigSize = 1 << 20

// configFile is one flat mapping from the names of flags to values, a scalar
// or a list of scalars. Flat, because names nest: collector.rdma is a switch
// and collector.rdma.device-include an option below it.
type configFile struct {
	path   string
	keys   []*yaml.Node
	values map[string]*yaml.Node
}

func readConfigFile(path string) (*configFile, error) {
	data, err := boundedfile.ReadFile(path, nil, maxConfigSize+1)
	if err != nil {
		return nil, fmt.Errorf("configuration file: %w", err)
	}
	if len(data) > maxConfigSize {
		return nil, fmt.Errorf("configuration file %s: larger than %d bytes", path, maxConfigSize)
	}
	return parseConfigFile(path, data)
}

func parseConfigFile(path string, data []byte) (*configFile, error) {
	c := &configFile{path: path, values: map[string]*yaml.Node{}}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return c, nil
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: more than one YAML document", path)
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return c, nil // nothing but comments
	}
	if root.Kind != yaml.MappingNode {
		return nil, c.errorf(root, "want keys and values")
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			return nil, c.errorf(key, "a key must be the name of a flag")
		}
		if old := c.values[key.Value]; old != nil {
			return nil, c.errorf(key, "%q is already set in line %d", key.Value, old.Line)
		}
		c.keys = append(c.keys, key)
		c.values[key.Value] = value
	}
	return c, nil
}

func (c *configFile) errorf(at *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("%s: line %d: %w", c.path, at.Line, fmt.Errorf(format, args...))
}

// checkKeys rejects keys that are the name of no flag of any command: the same
// file serves run, doctor and top.
func (c *configFile) checkKeys(app *kong.Application) error {
	known := map[string]bool{}
	err := kong.Visit(app, func(node kong.Visitable, next kong.Next) error {
		if flag, ok := node.(*kong.Flag); ok {
			known[flag.Name] = true
		}
		return next(nil)
	})
	if err != nil {
		return err
	}
	delete(known, "help")
	delete(known, "version")
	delete(known, "config.file")
	for _, key := range c.keys {
		if !known[key.Value] {
			return c.errorf(key, "unknown key %q", key.Value)
		}
	}
	return nil
}

// Validate implements kong.Resolver; the keys are checked before it is added.
func (c *configFile) Validate(*kong.Application) error { return nil }

// Resolve implements kong.Resolver. kong lets a resolver win over the
// environment, so a flag that is set there returns no value here.
func (c *configFile) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	node := c.values[flag.Name]
	if node == nil {
		return nil, nil
	}
	for _, env := range flag.Envs {
		if _, set := os.LookupEnv(env); set {
			return nil, nil
		}
	}
	value, err := c.value(node, flag.IsSlice())
	if err != nil {
		return nil, err
	}
	// Parse into a temporary target first, so that the error can name the line.
	target := reflect.New(flag.Target.Type()).Elem()
	if err := flag.Parse(kong.Scan().PushTyped(value, kong.FlagValueToken), target); err != nil {
		return nil, c.errorf(node, "%w", err)
	}
	return value, nil
}

func (c *configFile) value(node *yaml.Node, list bool) (any, error) {
	switch {
	case node.Kind == yaml.ScalarNode && node.Tag != "!!null":
		return node.Value, nil
	case node.Kind == yaml.SequenceNode && list:
		values := make([]any, 0, len(node.Content))
		for _, item := range node.Content {
			v, err := c.value(item, false)
			if err != nil {
				return nil, err
			}
			values = append(values, v)
		}
		return values, nil
	case list:
		return nil, c.errorf(node, "want a value or a list of values")
	}
	return nil, c.errorf(node, "want one value")
}
