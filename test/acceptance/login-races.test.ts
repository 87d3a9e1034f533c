// Sessions that end while something else is in progress: a device is kicked while it resumes or
// sends, and a token changes or a device quits at the moment of a login. In every order of events
// only a session with the valid token stays online.

import { setTimeout as pause } from "node:timers/promises";
import t, { type Test } from "tap";
import { CLOSE_REASONS, type CloseReason } from "../../src/broker/errors.ts";
import { type ChannelRef, GROUP_CHANNEL } from "../../src/broker/model.ts";
import { type Broker, spawnBroker, textPayload } from "../support/broker.ts";
import type { NativeClient } from "../support/native-session.ts";
import { textOf } from "../support/native-session.ts";
import { Random } from "../support/random.ts";
import { volume } from "../support/volume.ts";
import {
  disconnectReasonOf,
  eventually,
  logIn,
  logInAtOnce,
  onlineStateOf,
  openSocket,
  registerMain,
  TOKEN,
} from "./logins.ts";

const ROUNDS = Math.ceil(volume(200, "JINDOU_TEST_ROUNDS") / 8);
const BACKLOG = 400;
/** Settings with which each MESSAGES frame of a resume has a single message of the backlog. */
const SINGLE_MESSAGE_RUNS = {
  JINDOU_CLIENT_MAX_BUFFERED_BYTES: "65536",
  JINDOU_CLIENT_MAX_FRAME_BYTES: "65536",
  JINDOU_MESSAGES_MAX_PAYLOAD_BYTES: "32768",
};
const BACKLOG_TEXT_BYTES = 9000;
/** Maximum number of tries until three kicks have interrupted a resume. */
const MAX_RESUMES = 40;
const SEND_WINDOW = 16;
const TEAM: ChannelRef = { id: "team", type: GROUP_CHANNEL };
const ANN = { uid: "ann", token: TOKEN };
const ONLINE = { online: 1, flag: 0, sessions: 1, connections: 1 };
const OFFLINE = { online: 0, flag: 0, sessions: 0, connections: 0 };

const team = { channel_id: TEAM.id, channel_type: TEAM.type };

/** Broker of the tests about calls during a login. Nobody is online after any of these tests. */
const broker = await spawnBroker(t);
/** Broker of the tests about a resume. It has a team with many messages. */
const slowBroker = await spawnBroker(t, SINGLE_MESSAGE_RUNS);
await registerMain(slowBroker, "ann");
await createTeam(slowBroker);
await fillTeam(slowBroker, BACKLOG);

async function createTeam(broker: Broker): Promise<void> {
  const body = { ...team, subscribers: ["ann", "bob"] };
  const { status } = await broker.call("/channel", body);
  if (status !== 200) throw new Error(`/channel responded with ${status}`);
}

async function fillTeam(broker: Broker, count: number): Promise<void> {
  const send = (no: number) =>
    broker.call("/message/send", {
      ...team,
      from_uid: "bob",
      payload: textPayload(`backlog ${no}`.padEnd(BACKLOG_TEXT_BYTES)),
    });
  await Promise.all(Array.from({ length: count }, (_, no) => send(no + 1)));
}

/** Asserts that the resumed messages have no gap and no repeat. Returns the last seq resumed. */
function resumedThrough(t: Test, client: NativeClient): number {
  let cursor = 0;
  for (const push of client.pushes) {
    if (push.kind !== "messages") continue;
    if (push.afterSeq !== cursor)
      t.fail(
        `a run of messages after seq ${push.afterSeq} arrived although the client's position is ${cursor}`,
      );
    if (push.messages.length > 1) t.fail("a run has more than one message");
    cursor = push.throughSeq;
  }
  const seqs = client.messages.map(({ messageSeq }) => messageSeq);
  const expected = Array.from({ length: cursor }, (_, i) => i + 1);
  t.same(seqs, expected, "every message is pushed once and in order");
  return cursor;
}

t.test(
  "a device that is kicked while it resumes gets messages without a gap, and no frame after its disconnect frame",
  async (t) => {
    const broker = slowBroker;
    const resume = [{ channel: TEAM, lastSeq: 0 }];
    let interrupted = 0;
    for (let round = 0; round < MAX_RESUMES && interrupted < 3; round++) {
      const winner = await openSocket(broker, { ...ANN, resume });
      const loser = await logIn(broker, { ...ANN, resume });
      await winner.connect();
      const { code } = await loser.closed;
      t.equal(code, CLOSE_REASONS.kicked.code);
      t.equal(disconnectReasonOf(loser), "kicked");
      if (resumedThrough(t, loser) < BACKLOG) interrupted += 1;
      await winner.waitFor(() => winner.messages.length >= BACKLOG);
      t.equal(resumedThrough(t, winner), BACKLOG);
      t.same(await onlineStateOf(broker, "ann"), ONLINE);
      await winner.disconnect();
    }
    t.ok(interrupted > 0, "some kicks interrupted a resume");
  },
);

t.test(
  "if two devices log in and resume at the same time, the device that stays online gets every message",
  async (t) => {
    const broker = slowBroker;
    const device = { ...ANN, resume: [{ channel: TEAM, lastSeq: 0 }] };
    for (let round = 0; round < 5; round++) {
      const { survivors, ended } = await logInAtOnce(broker, [device, device]);
      for (const { client } of ended) {
        t.equal(disconnectReasonOf(client), "kicked");
        resumedThrough(t, client);
      }
      for (const winner of survivors) {
        await winner.waitFor(() => winner.messages.length >= BACKLOG);
        t.equal(resumedThrough(t, winner), BACKLOG);
        await winner.disconnect();
      }
    }
  },
);

t.test(
  "the messages of a device that is kicked while it sends are stored once and in order, and no acknowledged message is lost",
  async (t) => {
    const settings = { JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "0" };
    const broker = await spawnBroker(t, settings);
    await registerMain(broker, "ann");
    await createTeam(broker);
    const random = new Random(1);
    let unacknowledged = 0;
    let head = 0;
    for (let round = 0; round < 8; round++) {
      const loser = await logIn(broker, ANN);
      const text = (no: number) => `round ${round} send ${no}`;
      const sending = sendUntilClosed(loser, text);
      await pause(random.below(40));
      const winner = await logIn(broker, ANN);
      const { code } = await loser.closed;
      t.equal(code, CLOSE_REASONS.kicked.code);
      t.equal(disconnectReasonOf(loser), "kicked");
      const { sent, acknowledged } = await sending;
      unacknowledged += sent - acknowledged;
      const texts = await textsAfter(winner, head);
      head += texts.length;
      const stored = texts.filter((item) => item.startsWith(`round ${round} `));
      t.equal(stored.length, texts.length, "no message of an earlier round is stored late");
      const expected = stored.map((_, no) => text(no));
      t.same(stored, expected, "the messages are stored once and in the order sent");
      t.ok(stored.length >= acknowledged, "no acknowledged message is missing");
      await winner.disconnect();
    }
    t.ok(unacknowledged > 0, "some kicks interrupted sends");
  },
);

/** Returns the texts of the history after a seq. */
async function textsAfter(client: NativeClient, afterSeq: number): Promise<readonly string[]> {
  const texts: string[] = [];
  let more = true;
  while (more) {
    const fromSeq = afterSeq + texts.length + 1;
    const page = await client.history(TEAM, { fromSeq, limit: 500 });
    texts.push(...page.messages.map(textOf));
    more = page.more;
  }
  return texts;
}

/** Sends with `SEND_WINDOW` messages in flight until the connection ends. */
async function sendUntilClosed(
  client: NativeClient,
  text: (no: number) => string,
): Promise<{ readonly sent: number; readonly acknowledged: number }> {
  let sent = 0;
  let acknowledged = 0;
  const worker = async () => {
    for (;;) {
      const no = sent;
      sent += 1;
      await client.send(TEAM, text(no), { clientMsgNo: text(no) });
      acknowledged += 1;
    }
  };
  const workers = Array.from({ length: SEND_WINDOW }, worker);
  await Promise.allSettled(workers);
  return { sent, acknowledged };
}

interface Race {
  /** HTTP call that is made at the moment of the login. */
  readonly path: string;
  readonly body: object;
  /** Reason with which the call ends an existing session. */
  readonly reason: CloseReason;
}

/**
 * Logs two devices in and makes the call at nearly the same time, either the logins or the call
 * first. At the end, no device may be online.
 */
async function raceLogin(t: Test, broker: Broker, race: Race): Promise<void> {
  const random = new Random(ROUNDS);
  const endings = new Map<string, number>();
  for (let round = 0; round < ROUNDS; round++) {
    await registerMain(broker, "ann");
    const headStartMs = random.below(3);
    const isCallFirst = random.flip();
    const call = async () => {
      if (!isCallFirst) await pause(headStartMs);
      return broker.call(race.path, race.body);
    };
    const logins = async () => {
      if (isCallFirst) await pause(headStartMs);
      return logInAtOnce(broker, [ANN, ANN], { survivorCount: 0 });
    };
    const [{ status }, { ended }] = await Promise.all([call(), logins()]);
    t.equal(status, 200);
    for (const { client, closeCode } of ended) {
      const ending = disconnectReasonOf(client) ?? "silent";
      endings.set(ending, (endings.get(ending) ?? 0) + 1);
      const expected = [race.reason, "kicked", "auth_failed"] as const;
      const reason = expected.find((item) => item === ending);
      t.equal(reason && CLOSE_REASONS[reason].code, closeCode, "the close code fits the reason");
    }
    await eventually("the user to be offline", async () => {
      const state = await onlineStateOf(broker, "ann");
      return JSON.stringify(state) === JSON.stringify(OFFLINE);
    });
    await t.rejects(logIn(broker, ANN), { code: "unauthorized" });
  }
  t.comment([...endings].map(([reason, count]) => `${reason} ${count}`).join(", "));
}

t.test(
  "a token change during concurrent logins ends every session of the old token, and a client can log in with the new token",
  async (t) => {
    const device = { device_flag: 0, device_level: 1 };
    await raceLogin(t, broker, {
      path: "/user/token",
      body: { uid: "ann", token: "new", ...device },
      reason: "token_changed",
    });
    const client = await logIn(broker, { uid: "ann", token: "new" });
    t.same(await onlineStateOf(broker, "ann"), ONLINE);
    await client.disconnect();
  },
);

t.test(
  "a logout of all devices during concurrent logins ends every session of the user and revokes the token",
  async (t) => {
    await raceLogin(t, broker, {
      path: "/user/device_quit",
      body: { uid: "ann", device_flag: -1 },
      reason: "logged_out",
    });
  },
);

t.test("registering an unchanged token during a login does not end a session", async (t) => {
  await registerMain(broker, "ann");
  for (let round = 0; round < ROUNDS; round++) {
    const [client] = await Promise.all([logIn(broker, ANN), registerMain(broker, "ann")]);
    await client.ping();
    t.equal(disconnectReasonOf(client), undefined, "the session is not ended");
    t.same(await onlineStateOf(broker, "ann"), ONLINE);
    await client.disconnect();
  }
});
