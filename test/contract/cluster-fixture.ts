// Helpers for the contract suites of clusters and sessions: a driver that opens nodes, session
// records, and the sessions that a login ends.

import { randomUUID } from "node:crypto";
import type { Test } from "tap";
import type { CloseReason } from "../../src/broker/errors.ts";
import { MAIN_DEVICE, type SessionRecord, userTopic } from "../../src/broker/model.ts";
import type { Cluster, ClusterEvent, Store } from "../../src/broker/ports.ts";
import type { SessionDirectory } from "../../src/broker/session-directory.ts";

/** A node of a cluster with its store and session directory. */

export interface ContractNode {
  readonly cluster: Cluster;
  readonly store: Store;
  readonly directory: SessionDirectory;
  /** Events that the node's listener has received. The array grows. */
  readonly events: readonly ClusterEvent[];
}

/** Opens the nodes on which the contract suites run. */
export interface NodeDriver {
  readonly name: string;
  /**
   * Starts a node of the driver's cluster. The node is closed when the test ends. A driver whose
   * cluster has a single node returns the same node each time.
   */
  open(t: Test): Promise<ContractNode>;
}

/** Fields of a session record that decide which sessions a login ends. */
export type SessionKind = Partial<Pick<SessionRecord, "flag" | "level" | "deviceId">>;

/**
 * Returns the record of a session of `uid` on the cluster's node. By default it is a main session
 * with the app flag (0) and without a device id.
 */
export function sessionOf(
  cluster: Pick<Cluster, "nodeId">,
  uid: string,
  kind: SessionKind = {},
): SessionRecord {
  return {
    sessionId: randomUUID(),
    nodeId: cluster.nodeId,
    uid,
    flag: 0,
    level: MAIN_DEVICE,
    deviceId: "",
    tokenTag: "",
    ...kind,
  };
}

/** Returns a uid that no other test uses. */
export const uniqueUid = (): string => `u-${randomUUID()}`;

/** Returns the user's sessions on all nodes. */
export async function sessionsOf(
  store: Pick<Store, "sessionsOf">,
  uid: string,
): Promise<readonly SessionRecord[]> {
  const [entries = []] = await store.sessionsOf([uid]);
  return entries.map(({ session }) => session);
}

/**
 * Runs `step` and returns the sessions of the user that the node was requested to end in the
 * meantime, each with its reason. The node stays subscribed to the user's topic.
 */
export async function sessionsEndedDuring(
  { cluster, events }: Pick<ContractNode, "cluster" | "events">,
  uid: string,
  step: () => Promise<unknown>,
): Promise<readonly (readonly [sessionId: string, reason: CloseReason])[]> {
  await cluster.listen(userTopic(uid));
  const from = events.length;
  await step();
  await cluster.barrier();
  return events
    .slice(from)
    .flatMap((event) =>
      event.kind === "end_session" && event.uid === uid
        ? [[event.sessionId, event.reason] as const]
        : [],
    );
}

/** Logs a session in and returns the ids of the sessions that this login ended. */
export async function sessionsEndedBy(
  node: Pick<ContractNode, "cluster" | "events" | "directory">,
  session: SessionRecord,
): Promise<readonly string[]> {
  const ended = await sessionsEndedDuring(node, session.uid, async () => {
    const { kind } = await node.directory.login(session);
    if (kind !== "entered") throw new Error(kind);
  });
  return ended.map(([sessionId]) => sessionId);
}
