// Judges ResourceSlices by what Kubernetes itself says of them: the API server's validation, and the scheduler's allocator, which
// chooses devices for claims.
//
//	claim-judge FILE   {"slices": [ResourceSlice], "classes": [DeviceClass],
//	                    "cases": [{"name": "…", "rounds": 1, "held": ["gpu-0"], "claims": [ResourceClaim]}]}
//
// Prints a line of JSON for each case: {"name", "devices": [the devices of each claim; null where nothing fits], "nanoseconds": of the
// median round}. Exit status 1, with each mistake on standard error, where a slice is invalid or the allocator refuses the pool.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/resource"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	"k8s.io/kubernetes/pkg/apis/resource/validation"
)

const cachedExpressions = 100

// What is beta in Kubernetes 1.36.
var features = structured.Features{AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true,
	PartitionableDevices: true, PrioritizedList: true}

type testCase struct {
	Name   string
	Rounds int
	Held   []string
	Claims []*resourcev1.ResourceClaim
}

type result struct {
	Name        string     `json:"name"`
	Devices     [][]string `json:"devices"`
	Nanoseconds int64      `json:"nanoseconds"`
}

type classes []*resourcev1.DeviceClass

func (all classes) List() ([]*resourcev1.DeviceClass, error) { return all, nil }
func (all classes) Get(name string) (*resourcev1.DeviceClass, error) {
	for _, one := range all {
		if one.Name == name {
			return one, nil
		}
	}
	return nil, fmt.Errorf("there is no DeviceClass %s", name)
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// validate reads a slice as the API server does, which refuses unknown fields where a client asks for it.
func validate(text json.RawMessage) (*resourcev1.ResourceSlice, error) {
	slice := &resourcev1.ResourceSlice{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(slice); err != nil {
		return nil, err
	}
	defaulted := slice.DeepCopy()
	legacyscheme.Scheme.Default(defaulted)
	internal := &resource.ResourceSlice{}
	if err := legacyscheme.Scheme.Convert(defaulted, internal, nil); err != nil {
		return nil, err
	}
	return defaulted, validation.ValidateResourceSlice(internal).ToAggregate()
}

func allocate(one testCase, node *v1.Node, pool []*resourcev1.ResourceSlice, known classes, cache *cel.Cache) result {
	held := sets.New[structured.DeviceID]()
	for _, device := range one.Held {
		held.Insert(structured.MakeDeviceID(pool[0].Spec.Driver, pool[0].Spec.Pool.Name, device))
	}
	found := result{Name: one.Name}
	var times []int64
	for range max(one.Rounds, 1) {
		started := time.Now()
		state := structured.AllocatedState{AllocatedDevices: held, AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity: structured.NewConsumedCapacityCollection()}
		allocator, err := structured.NewAllocator(context.Background(), features, state, known, pool, cache)
		if err != nil {
			fatal(err)
		}
		results, err := allocator.Allocate(context.Background(), node, one.Claims)
		if err != nil {
			fatal(fmt.Errorf("%s: %w", one.Name, err))
		}
		times = append(times, time.Since(started).Nanoseconds())
		found.Devices = nil
		for _, claim := range results {
			devices := []string{}
			for _, device := range claim.Devices.Results {
				devices = append(devices, device.Device)
			}
			found.Devices = append(found.Devices, devices)
		}
	}
	slices.Sort(times)
	found.Nanoseconds = times[len(times)/2]
	return found
}

func main() {
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		fatal(err)
	}
	var input struct {
		Slices  []json.RawMessage
		Classes classes
		Cases   []testCase
	}
	if err := json.Unmarshal(text, &input); err != nil {
		fatal(err)
	}
	failed := false
	var pool []*resourcev1.ResourceSlice
	for _, one := range input.Slices {
		slice, err := validate(one)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			failed = true
			continue
		}
		pool = append(pool, slice)
	}
	if failed || len(pool) == 0 {
		os.Exit(1)
	}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: *pool[0].Spec.NodeName}}
	cache := cel.NewCache(cachedExpressions, cel.Features{EnableConsumableCapacity: features.ConsumableCapacity})
	for _, one := range input.Cases {
		line, _ := json.Marshal(allocate(one, node, pool, input.Classes, cache))
		fmt.Println(string(line))
	}
}
