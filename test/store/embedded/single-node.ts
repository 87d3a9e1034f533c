// A single node, wired as in a server but without the server: the embedded store, a cluster of one
// node and the session directory. State: the events that its listener received.

import type { Test } from "tap";
import type { ClusterEvent } from "../../../src/broker/ports.ts";
import { SessionDirectory } from "../../../src/broker/session-directory.ts";
import { SingleNode } from "../../../src/cluster/single.ts";
import type { EmbeddedOptions } from "../../../src/store/embedded/store.ts";
import type { ContractNode } from "../../contract/cluster-fixture.ts";
import { openStore, testFolder } from "./folder.ts";

/** Starts the node. Its store is closed after the test. */
export async function startSingleNode(
  t: Test,
  over: Partial<EmbeddedOptions> = {},
  path = testFolder(t),
): Promise<ContractNode> {
  const events: ClusterEvent[] = [];
  const cluster = new SingleNode("n1");
  const publisher = cluster;
  const store = await openStore(t, path, { publisher, ...over });
  const onError = (error: unknown) => {
    throw error;
  };
  const directory = new SessionDirectory({ store, cluster, onError });
  directory.onEvent(
    (event) => events.push(event),
    async () => {},
  );
  await cluster.start();
  return { cluster, store, directory, events };
}
