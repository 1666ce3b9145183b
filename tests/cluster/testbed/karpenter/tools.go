//go:build tools

// Names the command that the testbed builds from this module's one requirement.
package tools

import _ "sigs.k8s.io/karpenter/kwok"
