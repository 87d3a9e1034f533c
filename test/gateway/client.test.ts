// One client between a recorded connection and operations that fail. Neither a reply that cannot be
// encoded nor the charges of a user can be observed from outside.

import { BrokerError } from "../../src/broker/errors.ts";
import { MAIN_DEVICE } from "../../src/broker/model.ts";
import type { SessionRef } from "../../src/broker/ports.ts";
import { Client } from "../../src/gateway/client.ts";
import { ClosedSessions } from "../../src/gateway/closed-sessions.ts";
import { FrameTurns } from "../../src/gateway/frame-turns.ts";
import {
  ConnectionRate,
  GreetingBytes,
  UserRates,
  type WorkLimits,
} from "../../src/gateway/rates.ts";
import { Deadlines } from "../../src/lib/deadlines.ts";
import { PacedSteps } from "../../src/lib/paced-steps.ts";
import { decodeServerFrame } from "../../src/protocol/native/client-decode.ts";
import { createEncoder } from "../../src/protocol/native/encode.ts";
import { type Codec, FrameError, type Operation } from "../../src/protocol/protocol.ts";
import { t } from "../support/suite.ts";
import { type OperationWorld, operationPorts } from "./operation-world.ts";
import { seeded } from "./random.ts";
import { CountingCodec, Wire } from "./recorder.ts";
import { group, person, World } from "./world.ts";

const NO_LIMIT: WorkLimits = {
  connection: { perSecond: 0, burst: 0 },
  user: { perSecond: 0, burst: 0 },
  stored: { perSecond: 0, burst: 0 },
  events: { perSecond: 0, burst: 0 },
};
const LIMITS: WorkLimits = {
  connection: { perSecond: 1, burst: 200 },
  user: { perSecond: 1, burst: 200 },
  stored: { perSecond: 0, burst: 0 },
  events: { perSecond: 0, burst: 0 },
};
const CONNECT = {
  ...({
    kind: "connect",
    ref: 1,
    version: 1,
    acknowledges: false,
    uid: "alice",
    token: "",
  } as const),
  ...({ flag: 0, deviceId: "", level: undefined, sessionName: "" } as const),
  resume: [],
};
const HISTORY = {
  ...({ kind: "history", ref: 2, channel: group("other") } as const),
  ...{ fromSeq: 0, toSeq: 0, limit: 500, reverse: true },
};

const turns = async (): Promise<void> => {
  for (let i = 0; i < 5; i++) await new Promise((done) => setImmediate(done));
};

interface FixtureOptions {
  readonly limits?: WorkLimits;
  readonly groups?: number;
  readonly operations?: OperationWorld;
  readonly encodeReply?: Codec["encodeReply"];
  readonly leaving?: PacedSteps;
  /** Catch-up after the CONNACK. */
  readonly catchUp?: () => Promise<void>;
  /** Reads the resume points of the CONNECT, after the login. */
  readonly finishDecoding?: () => [];
}

/** Creates a live client of alice. */
async function createFixture({ limits = NO_LIMIT, groups = 0, ...options }: FixtureOptions = {}) {
  const world = new World(seeded(1));
  for (let at = 0; at < groups; at++) world.server.changeMember(`g${at}`, "alice", true);
  const connection = new Wire().connect();
  const codec = new CountingCodec("f");
  let next: Operation = CONNECT;
  let encodeReply: Codec["encodeReply"] = (reply) => codec.encodeReply(reply);
  const rates = new UserRates(limits);
  const { store, cluster } = world.server;
  const { hub, catchUps, resync } = world;
  const operations = operationPorts(world, options.operations);
  const removed: string[] = [];
  const client = new Client(
    connection,
    {
      format: "f",
      isPrivate: false,
      version: 1,
      acknowledges: false,
      splitsRequests: false,
      decode: () => [next],
      decodeConnect: () => ({ ...CONNECT, finishDecoding: options.finishDecoding ?? (() => []) }),
      refuseLarge: () => undefined,
      encodeReply: (reply) => encodeReply(reply),
      encodePush: (push) => codec.encodePush(push),
    },
    {
      clients: new Set(),
      protocols: [],
      opening: {
        ...{ store, cluster, hub, resync },
        catchUps: options.catchUp === undefined ? catchUps : { connect: options.catchUp, lag() {} },
        groups: world.groups,
        metrics: operations.metrics,
        limits: { pageMessages: 3, pageBytes: 1000, maxUnreadBytes: 100 },
        sessions: {
          verify: async () => {},
          logIn: async ({ sessionId, nodeId, uid, flag, deviceId }) => ({
            ...{ kind: "entered", order: 1, newestId: 0 },
            groups: world.server.groupsOf(uid),
            record: {
              ...{ sessionId, nodeId, uid, flag, deviceId },
              ...{ level: MAIN_DEVICE, tokenTag: "" },
            },
          }),
        },
        directory: {
          ...world.server.directory,
          endedBy: async () => undefined,
          remove: async ({ sessionId }: SessionRef) => void removed.push(sessionId),
        },
        ...{ nodeId: "n", clock: () => 0 },
        clientLimits: {
          ...{ maxFrameBytes: 1, maxPayloadBytes: 1 },
          ...{ idleTimeoutS: 1, maxFramesPerSecond: 0 },
        },
        ...{ maxHeldBytes: 1_000_000, resendAfterMs: 0, maxSessionsPerUser: 0 },
        tokens: { attempt: (_bearer, check) => check() },
        rates,
        greetings: new GreetingBytes(),
        expiry: { start() {}, stop() {}, expiresInS: () => undefined },
        openings: { run: (_bytes, step) => step() },
        nextSessionId: () => "s",
      },
      operations,
      loginDeadlines: new Deadlines(60_000, (waiting) => waiting.end("auth_timeout")),
      limits: { maxInFlightOperations: 10_000 },
      turns: new FrameTurns(),
      leaving: options.leaving ?? new PacedSteps(1),
      closedSessions: new ClosedSessions(0),
      onError: (error) => world.bugs.push(error),
    },
  );
  const receive = (operation: Operation) => {
    next = operation;
    client.received(new Uint8Array(1), false);
  };
  receive(CONNECT);
  await turns();
  await world.server.settle();
  t.teardown(() => client.closed(1000));
  if (options.encodeReply !== undefined) encodeReply = options.encodeReply;
  return { world, connection, rates, receive, client, removed };
}

t.test(
  "a session ends when its connection closes, and is removed in a later turn of the event loop if the current turn has no time left",
  async (t) => {
    const leaving = new PacedSteps(0);
    const { world, client } = await createFixture({ leaving });
    const sessionsOf = () => world.hub.sessionsOf("alice");
    const [session] = sessionsOf();
    leaving.run(() => {}); // uses up the time of this turn
    client.closed(1006);
    t.equal(session?.ended, "goodbye");
    t.equal(sessionsOf().length, 1);
    t.equal(leaving.isIdle, false, "a node that stops waits for the removal");
    await turns();
    t.equal(sessionsOf().length, 0);
    t.equal(leaving.isIdle, true);
  },
);

t.test("the client receives every `retryAfterMs` unchanged", async (t) => {
  const { reply } = createEncoder();
  const waits: number[] = [];
  const owing = { perSecond: 1000, burst: 5000 };
  const { world, receive } = await createFixture({
    operations: {
      conversations: {
        list: () => Promise.reject(new Error("this test lists no conversations")),
        async change(_by, { id }) {
          const limits = { ...NO_LIMIT, connection: owing };
          const rate = new ConnectionRate(limits, () => 0);
          rate.charge(owing.burst + Number(id));
          rate.requirePaid();
          throw new Error("the call was not rejected although the budget is in debt");
        },
      },
    },
    encodeReply(answer) {
      const frame = reply(answer);
      const read = decodeServerFrame(frame, "alice");
      if (read.kind === "error") waits.push(read.retryAfterMs);
      return frame;
    },
  });
  const waitsMs = Array.from({ length: 4000 }, (_, at) => at + 1);
  for (const ms of waitsMs)
    receive({
      ...({ kind: "conversation", ref: 2 } as const),
      channel: group(String(ms)),
      change: { kind: "delete" },
    });
  await turns();
  t.same(waits, waitsMs);
  t.same(world.bugs, []);
});

t.test("a CONNECT gets no second reply if the catch-up fails after the CONNACK", async (t) => {
  for (const [error, bugs] of [
    [new BrokerError("unavailable"), 0],
    [new TypeError("a bug"), 1],
  ] as const) {
    const { world, connection } = await createFixture({ catchUp: () => Promise.reject(error) });
    t.match(connection.seen, [{ reply: { kind: "connack" } }, { reason: "unavailable" }]);
    t.equal(connection.seen.length, 2);
    t.equal(connection.endedWith, 4102);
    t.equal(world.bugs.length, bugs);
  }
});

t.test(
  "a CONNECT with an invalid resume point gets one error, and its session is removed when the connection closes",
  async (t) => {
    const { world, connection, client, removed } = await createFixture({
      finishDecoding() {
        throw new FrameError("malformed_frame", 1, "The resume point is not valid");
      },
    });
    t.match(connection.seen, [
      { reply: { kind: "error", ref: 1, code: "malformed_frame" } },
      { reason: "protocol_error" },
    ]);
    t.equal(connection.seen.length, 2);
    client.closed(1000);
    await turns();
    t.same(removed, ["s"]);
    t.equal(world.hub.sessionsOf("alice").length, 0);
    t.same(world.bugs, []);
  },
);

t.test("an error reply that cannot be encoded closes only its own connection", async (t) => {
  const { world, connection, receive } = await createFixture({
    encodeReply() {
      throw new RangeError("no such number");
    },
  });
  let unhandled = 0;
  const count = () => {
    unhandled += 1;
  };
  process.on("unhandledRejection", count);
  t.teardown(() => process.off("unhandledRejection", count));
  receive(HISTORY);
  await turns();
  t.equal(unhandled, 0, "no promise rejects");
  t.match(world.bugs, [{ message: "no such number" }]);
  t.match(connection.seen.at(-1), { reason: "unavailable" });
  t.equal(connection.endedWith, 4102);
});

t.test(
  "after a failed write of the background state, the next reported state is written even if it equals the state before that write",
  async (t) => {
    const writes: boolean[] = [];
    const { receive } = await createFixture({
      operations: {
        async setBackground(isBackground) {
          writes.push(isBackground);
          if (writes.length === 1) throw new BrokerError("unavailable"); // the reply was lost
        },
      },
    });
    for (const foreground of [false, true, true]) {
      receive({ kind: "state", ref: 2, foreground });
      await turns();
    }
    t.same(writes, [true, false], "a state that is stored is not written again");
  },
);

t.test(
  "a background state whose write was refused is written at the next report, even if an earlier write ends after the refusal",
  async (t) => {
    const writes: boolean[] = [];
    let finish = () => {};
    const { receive } = await createFixture({
      operations: {
        async setBackground(isBackground) {
          writes.push(isBackground);
          if (writes.length === 2) throw new BrokerError("overloaded");
          await new Promise<void>((resolve) => {
            finish = resolve;
          });
        },
      },
    });
    for (const foreground of [false, true]) receive({ kind: "state", ref: 2, foreground });
    await turns();
    finish();
    await turns();
    receive({ kind: "state", ref: 3, foreground: true });
    await turns();
    t.same(writes, [true, false, false]);
  },
);

t.test("a session is charged almost no work for a refused HISTORY", async (t) => {
  const { connection, receive } = await createFixture({ limits: LIMITS });
  for (let at = 0; at < 20; at++) {
    receive(HISTORY);
    await turns();
  }
  const codes = connection.seen.flatMap((frame) =>
    frame.kind === "reply" && frame.reply.kind === "error" ? [frame.reply.code] : [],
  );
  t.same(codes, Array(20).fill("not_in_channel"));
});

t.test("the work charged for a CONNECT grows with the number of the user's groups", async (t) => {
  const few = await createFixture({ limits: LIMITS, groups: 300 });
  t.equal(few.rates.waitMs("alice", 0), 0, "300 groups do not use up the budget");
  const many = await createFixture({ limits: LIMITS, groups: 1000 });
  t.equal(many.connection.seen.at(0)?.kind, "reply", "the client is connected");
  t.ok(many.rates.waitMs("alice", 0) > 0, "1000 groups leave the budget in debt");
});

t.test(
  "each request that causes many deliveries is processed in its own turn of the event loop",
  async (t) => {
    let cancels = 0;
    const cancel = async () => {
      cancels += 1;
      return "cancelled" as const;
    };
    const { world, receive } = await createFixture({ limits: LIMITS, operations: { cancel } });
    for (let at = 0; at < 500; at++) world.hub.enter(world.session({ uid: "bob" }).session);
    for (let at = 0; at < 4; at++)
      receive({ kind: "cancel", ref: 3, channel: person("bob"), clientMsgNo: "s" });
    t.equal(cancels, 0, "the frames wait, because CONNECT has cost a part of the burst");
    for (let turn = 1; turn <= 4; turn++) {
      await new Promise((done) => setImmediate(done));
      t.equal(cancels, turn);
    }
  },
);
