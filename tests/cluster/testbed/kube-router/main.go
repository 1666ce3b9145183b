// kube-router's network policy controller alone, without its router, its service proxy and their libraries: it enforces the cluster's
// NetworkPolicies on one node by iptables and ipset, until SIGTERM, at which it removes its rules.
//
//	kube-router KUBECONFIG NODE
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

const serviceClusterIPRange = "10.99.0.0/24" // the API server's --service-cluster-ip-range

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: kube-router KUBECONFIG NODE")
	}
	ended, ignored := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer ignored()
	if err := enforce(os.Args[1], os.Args[2], ended.Done()); err != nil {
		log.Fatal(err)
	}
}

func enforce(kubeconfig, node string, ended <-chan struct{}) error {
	rest, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return err
	}
	config := options.NewKubeRouterConfig()
	config.HostnameOverride, config.ClusterIPCIDRs = node, []string{serviceClusterIPRange}
	config.EnableIPv4, config.EnableIPv6 = true, false

	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	iptables, ipsets, err := netpol.NewIPTablesHandlers(config)
	if err != nil {
		return err
	}
	controller, err := netpol.NewNetworkPolicyController(client, config, pods, policies, namespaces, &sync.Mutex{}, iptables, ipsets)
	if err != nil {
		return err
	}
	factory.Start(ended)
	for kind, synced := range factory.WaitForCacheSync(ended) {
		if !synced {
			return fmt.Errorf("no list of %v from the API server", kind)
		}
	}
	for _, each := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{pods, controller.PodEventHandler},
		{namespaces, controller.NamespaceEventHandler},
		{policies, controller.NetworkPolicyEventHandler},
	} {
		if _, err := each.informer.AddEventHandler(each.handler); err != nil {
			return err
		}
	}
	heartbeats := make(chan *healthcheck.ControllerHeartbeat)
	go func() {
		for range heartbeats {
		}
	}()
	var running sync.WaitGroup
	running.Add(1)
	controller.Run(heartbeats, ended, &running)
	running.Wait() // for a synchronization that has begun
	controller.Cleanup()
	return nil
}
