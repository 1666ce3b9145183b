// Judges CDI documents by what the CDI project itself says of them: its JSON schema, then its own library, which every
// container engine reads them with. Prints each mistake; exit status 1 when there is one.
package main

import (
	"fmt"
	"os"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/schema"
)

func main() {
	failed := false
	complain := func(path string, err error) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", path, err)
		failed = true
	}
	official, err := schema.Load(schema.BuiltinSchemaName)
	if err != nil {
		complain("the schema", err)
	}
	cdi.SetSpecValidator(nil)
	for _, path := range os.Args[1:] {
		if err := official.ValidateFile(path); err != nil {
			complain(path, err)
		}
		if spec, err := cdi.ReadSpec(path, 0); err != nil {
			complain(path, err)
		} else {
			fmt.Printf("%s: %s %s, %d devices\n", path, spec.Version, spec.Kind, len(spec.Devices))
		}
	}
	if failed {
		os.Exit(1)
	}
}
