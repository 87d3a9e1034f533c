// What the suites of the Cluster's and the sessions' contract work with: a driver that opens nodes,
// names nobody else uses.

import { randomUUID } from "node:crypto";
import type { Test } from "tap";
import type { CloseReason } from "../../src/broker/errors.ts";
import { MAIN_DEVICE, type SessionRecord, userTopic } from "../../src/broker/model.ts";
import type { Cluster, ClusterEvent, Store } from "../../src/broker/ports.ts";
import type { SessionDirectory } from "../../src/broker/session-directory.ts";

export interface ContractNode {
  readonly cluster: Cluster;
  readonly store: Store;
  readonly directory: SessionDirectory;
  /** Grows with what its listener is told. */
  readonly events: readonly ClusterEvent[];
}

export interface NodeDriver {
  readonly name: string;
  /**
   * A started node of one and the same cluster. Closes itself with the test. A driver of one node
   * gives the same one each time.
   */
  open(t: Test): Promise<ContractNode>;
}

export type SessionKind = Partial<Pick<SessionRecord, "flag" | "level" | "deviceId">>;

/**
 * A session of `uid` on the cluster's node: a main app device without a name, unless told
 * otherwise.
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

export const uniqueUid = (): string => `u-${randomUUID()}`;

/** The user's sessions, whoever serves them. */
export async function sessionsOf(
  store: Pick<Store, "sessionsOf">,
  uid: string,
): Promise<readonly SessionRecord[]> {
  const [entries = []] = await store.sessionsOf([uid]);
  return entries.map(({ session }) => session);
}

/**
 * Which sessions of the user the node was told to end while `step` ran, and why. The node listens
 * to the user from then on.
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
    .flatMap((one) =>
      one.kind === "end_session" && one.uid === uid ? [[one.sessionId, one.reason] as const] : [],
    );
}

/** Logs a session in and gives the ids of the sessions that it ended. */
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
