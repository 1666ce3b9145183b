//go:build tools

// Names the command that the testbed builds from this module's one requirement.
package tools

import _ "github.com/kubeflow/training-operator/cmd/training-operator.v1"
