// Judges ResourceSlices by what Kubernetes itself says of them: the API server's validation, and the scheduler's allocator, which
// chooses devices for claims.
//
//	claim-judge FILE...   {"slices": [ResourceSlice], "classes": [DeviceClass],
//	                       "cases": [{"name": "…", "rounds": 1, "held": ["gpu-0"], "sequential": false, "claims": [ResourceClaim]}]}
//
// Prints a line of JSON for each case: {"name", "devices": [the devices of each claim; null where nothing fits], "consumed": [of each
// claim, the capacities that it takes of each device that it shares], "nanoseconds": of the median round}. The claims of a case are
// allocated together, as those of a Pod; of a sequential case one after the other, as those of Pods that come and stay.
// With "-" for FILE, each line of standard input is such a text, and its lines are printed before the next is read.
// Exit status 1, with each mistake on standard error, where a slice is invalid or the allocator refuses the pool.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	Name       string
	Rounds     int
	Held       []string
	Sequential bool
	Claims     []*resourcev1.ResourceClaim
}

type result struct {
	Name        string               `json:"name"`
	Devices     [][]string           `json:"devices"`
	Consumed    [][]map[string]int64 `json:"consumed"`
	Nanoseconds int64                `json:"nanoseconds"`
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

// add keeps what an allocation takes from later ones.
func add(state structured.AllocatedState, allocation resourcev1.AllocationResult) {
	for _, one := range allocation.Devices.Results {
		device := structured.MakeDeviceID(one.Driver, one.Pool, one.Device)
		if one.ShareID == nil {
			state.AllocatedDevices.Insert(device)
			continue
		}
		state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(device, one.ShareID))
		state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(device, one.ConsumedCapacity))
	}
}

func (found *result) add(allocation resourcev1.AllocationResult) {
	devices, consumed := []string{}, []map[string]int64{}
	for _, one := range allocation.Devices.Results {
		devices = append(devices, one.Device)
		capacities := map[string]int64{}
		for name, quantity := range one.ConsumedCapacity {
			capacities[string(name)] = quantity.Value()
		}
		consumed = append(consumed, capacities)
	}
	found.Devices, found.Consumed = append(found.Devices, devices), append(found.Consumed, consumed)
}

func allocate(one testCase, node *v1.Node, pool []*resourcev1.ResourceSlice, known classes, cache *cel.Cache) (result, error) {
	found := result{Name: one.Name}
	batches := [][]*resourcev1.ResourceClaim{one.Claims}
	if one.Sequential {
		batches = nil
		for _, claim := range one.Claims {
			batches = append(batches, []*resourcev1.ResourceClaim{claim})
		}
	}
	var times []int64
	for range max(one.Rounds, 1) {
		started := time.Now()
		state := structured.AllocatedState{AllocatedDevices: sets.New[structured.DeviceID](),
			AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](), AggregatedCapacity: structured.NewConsumedCapacityCollection()}
		for _, device := range one.Held {
			state.AllocatedDevices.Insert(structured.MakeDeviceID(pool[0].Spec.Driver, pool[0].Spec.Pool.Name, device))
		}
		found.Devices, found.Consumed = nil, nil
		for _, claims := range batches {
			allocator, err := structured.NewAllocator(context.Background(), features, state, known, pool, cache)
			if err != nil {
				return found, err
			}
			allocations, err := allocator.Allocate(context.Background(), node, claims)
			if err != nil {
				return found, fmt.Errorf("%s: %w", one.Name, err)
			}
			for _, allocation := range allocations {
				add(state, allocation)
				found.add(allocation)
			}
			if one.Sequential && len(allocations) == 0 {
				found.Devices, found.Consumed = append(found.Devices, nil), append(found.Consumed, nil)
			}
		}
		times = append(times, time.Since(started).Nanoseconds())
	}
	slices.Sort(times)
	found.Nanoseconds = times[len(times)/2]
	return found, nil
}

// judge prints what becomes of each case of an input.
func judge(decoder *json.Decoder) error {
	var input struct {
		Slices  []json.RawMessage
		Classes classes
		Cases   []testCase
	}
	if err := decoder.Decode(&input); err != nil {
		return err
	}
	var pool []*resourcev1.ResourceSlice
	var mistakes []error
	for _, one := range input.Slices {
		slice, err := validate(one)
		if err != nil {
			mistakes = append(mistakes, err)
			continue
		}
		pool = append(pool, slice)
	}
	if len(mistakes) > 0 {
		return errors.Join(mistakes...)
	}
	if len(pool) == 0 {
		return errors.New("there is no slice")
	}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: *pool[0].Spec.NodeName}}
	cache := cel.NewCache(cachedExpressions, cel.Features{EnableConsumableCapacity: features.ConsumableCapacity})
	for _, one := range input.Cases {
		found, err := allocate(one, node, pool, input.Classes, cache)
		if err != nil {
			return err
		}
		line, _ := json.Marshal(found)
		fmt.Println(string(line))
	}
	return nil
}

func judgeFile(name string) error {
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		defer file.Close()
		return judge(json.NewDecoder(file))
	}
	for inputs := json.NewDecoder(os.Stdin); ; {
		if err := judge(inputs); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func main() {
	status := 0
	for _, file := range os.Args[1:] {
		if err := judgeFile(file); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", file, err)
			status = 1
		}
	}
	os.Exit(status)
}
