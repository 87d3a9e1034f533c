// The workloads of the overview.

import type { Work } from "../peers/peer.ts";

export const SCENARIOS = ["fanout", "post", "send", "connect", "resume", "late"] as const;
export type Scenario = (typeof SCENARIOS)[number];

export interface WorkOptions {
  readonly scenarios: readonly Scenario[];
  /** Group sizes. For the largest group, publishing by a client is also measured. */
  readonly members: readonly number[];
  /** Connections of the scenarios `post` and `send`. */
  readonly connections: number;
  /** Clients of the scenarios `connect`, `resume` and `late`. */
  readonly clients: number;
  /** Messages in flight in a closed loop of a fan-out. */
  readonly inFlight: number;
  /** Messages per second of an open loop. Absent for a closed loop. */
  readonly rate: number | undefined;
}

/** Number of chunks of the AI answer in the scenario `late`. */
const CHUNKS = 200;
/** Number of messages that each client missed in the scenario `resume`. */
const MISSED = 20;

/** One workload and its load. */
export interface PlannedWork {
  readonly id: string;
  readonly title: string;
  readonly unit: string;
  readonly work: Work;
  readonly connections: number;
  /** Number of unanswered messages on each connection, or of messages in flight in a fan-out. */
  readonly depth: number;
  readonly loop: string;
}

/** Returns the workloads in the order in which they are measured. */
export function planWorks(options: WorkOptions): readonly PlannedWork[] {
  const { scenarios, members, connections, clients, inFlight, rate } = options;
  const loop = (closed: string) =>
    rate === undefined ? `closed loop, ${closed}` : `open loop, ${rate} messages per second`;
  const largest = Math.max(...members);
  const fanouts = members.flatMap((count) =>
    fanoutsOf(count, count === largest ? ["http", "socket"] : ["http"], {
      connections: count,
      depth: inFlight,
      loop: loop(`${inFlight} in flight`),
    }),
  );
  const works: Record<Scenario, readonly PlannedWork[]> = {
    fanout: fanouts,
    post: [
      {
        id: "post",
        title: "HTTP call that sends a message (Jindou stores it)",
        unit: "messages/s",
        work: { kind: "post" },
        ...{ connections, depth: 1, loop: loop(`${connections} connections`) },
      },
    ],
    send: [
      {
        id: "send",
        title: "message of a client until its acknowledgement (Jindou stores it)",
        unit: "messages/s",
        work: { kind: "send", connections },
        ...{ connections, depth: 1, loop: loop(`${connections} connections`) },
      },
    ],
    connect: [
      {
        id: "connect",
        title: `${clients} clients connect at once (Jindou checks their tokens and joins a group)`,
        unit: "connects/s",
        work: { kind: "connect", clients },
        ...{ connections: clients, depth: 0, loop: "" },
      },
    ],
    resume: [
      {
        id: "resume",
        title: `${clients} clients connect again at once, and each gets the ${MISSED} messages that it missed`,
        unit: "connects/s",
        work: { kind: "resume", clients, missed: MISSED },
        ...{ connections: clients, depth: 0, loop: "" },
      },
    ],
    late: [
      {
        id: "late",
        title: `${clients} clients connect at once while an AI answer is written, and each gets its ${CHUNKS} chunks so far`,
        unit: "connects/s",
        work: { kind: "late", clients, chunks: CHUNKS },
        ...{ connections: clients, depth: 0, loop: "" },
      },
    ],
  };
  return SCENARIOS.filter((name) => scenarios.includes(name)).flatMap((name) => works[name]);
}

function fanoutsOf(
  count: number,
  ways: readonly ("http" | "socket")[],
  load: Pick<PlannedWork, "connections" | "depth" | "loop">,
): readonly PlannedWork[] {
  return ways.map((via) => ({
    ...load,
    id: via === "http" ? `fanout-${count}` : `fanout-${count}-socket`,
    title: `message to a group of ${count}, published ${via === "http" ? "over HTTP" : "by a client"}`,
    unit: "deliveries/s",
    work: { kind: "fanout", members: count, via },
  }));
}
