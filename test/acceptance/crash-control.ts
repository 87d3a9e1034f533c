// The backend of the crash test: keeps changing tokens, members, flags, channels and manager logins
// while the broker is killed, and then asks whether everything that was answered still holds.
// State: what was answered for certain, and the one change that was broken off.

import type { Test } from "tap";
import { GROUP_CHANNEL } from "../../src/broker/model.ts";
import type { ApiResponse, Broker } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { NativeClientError } from "../support/native-session.ts";
import type { Doom } from "./crash-load.ts";
import { ADMIN_PASSWORD, STATIC_TOKEN, TOKEN } from "./crash-names.ts";

const TIMEOUT_MS = 120_000;
/** Member of everything here, its token never changes. */
const WITNESS = "witness";
/** Its token changes all the time. */
const CAROL = "carol";
const CLUB = { channel_id: "club", channel_type: GROUP_CHANNEL };
const HALL = { channel_id: "hall", channel_type: GROUP_CHANNEL };

/**
 * A value that is changed by calls: after a crash it is what was last answered, or what the
 * broken-off call asked for.
 */
class Cell<T> {
  #possible: readonly T[];

  constructor(value: T) {
    this.#possible = [value];
  }

  get possible(): readonly T[] {
    return this.#possible;
  }

  async change(to: T, call: () => Promise<void>): Promise<void> {
    this.#possible = [...this.#possible, to];
    await call();
    this.#possible = [to];
  }

  /** After a crash: `value` is what it turned out to be. False: it cannot be. */
  settle(value: T | undefined): boolean {
    if (value === undefined || !this.#possible.includes(value)) return false;
    this.#possible = [value];
    return true;
  }
}

export class Control {
  readonly #token = new Cell("carol-0");
  readonly #isMember = new Cell(false);
  readonly #isBanned = new Cell(false);
  readonly #channels: string[] = [];
  readonly #managerTokens: string[] = [];
  readonly #endedTokens: string[] = [];
  #changes = 0;
  #brokenOffChannel: string | undefined;

  /** Registers the users and channels it works with. */
  async prepare(broker: Broker): Promise<void> {
    await setToken(broker, WITNESS, TOKEN);
    await setToken(broker, CAROL, "carol-0");
    await ok(call(broker, "/channel", CLUB));
    await ok(call(broker, "/channel", { ...HALL, subscribers: [WITNESS] }));
  }

  /** Changes one thing after the other until doom is near. */
  async run(broker: Broker, doom: Doom): Promise<void> {
    try {
      await this.#login(broker);
      while (!doom.isNear) {
        this.#changes += 1;
        await this.#changeToken(broker);
        await this.#changeMember(broker);
        await this.#changeFlag(broker);
        await this.#createChannel(broker);
      }
    } catch (error) {
      if (!doom.isNear) throw error;
    }
  }

  /** Whether everything that was answered before the crash holds. */
  async verify(t: Test, broker: Broker): Promise<void> {
    const accepted: string[] = [];
    for (const token of this.#token.possible)
      if (await isAccepted(broker, token)) accepted.push(token);
    t.equal(accepted.length, 1, "one token is valid");
    t.ok(this.#token.settle(accepted[0]), "the token is the last one set");
    const [club] = await memberships(broker, ["club"]);
    t.ok(this.#isMember.settle(club), "membership is as last changed");
    t.ok(this.#isBanned.settle(await isBanned(broker)), "the flag is as last set");
    await this.#verifyChannels(t, broker);
    await this.#verifyManagers(t, broker);
  }

  async #changeToken(broker: Broker): Promise<void> {
    const token = `carol-${this.#changes}`;
    await this.#token.change(token, () => setToken(broker, CAROL, token));
  }

  async #changeMember(broker: Broker): Promise<void> {
    const add = !this.#isMember.possible[0];
    const path = add ? "/channel/subscriber_add" : "/channel/subscriber_remove";
    const body = { ...CLUB, subscribers: [WITNESS] };
    await this.#isMember.change(add, () => ok(call(broker, path, body)));
  }

  async #changeFlag(broker: Broker): Promise<void> {
    const ban = !this.#isBanned.possible[0];
    const body = { ...HALL, ban: ban ? 1 : 0 };
    await this.#isBanned.change(ban, () => ok(call(broker, "/channel/info", body)));
  }

  async #createChannel(broker: Broker): Promise<void> {
    const id = `room-${this.#changes}`;
    this.#brokenOffChannel = id;
    await ok(createRoom(broker, id));
    this.#brokenOffChannel = undefined;
    this.#channels.push(id);
  }

  async #login(broker: Broker): Promise<void> {
    const login = async () => {
      const credentials = { username: "admin", password: ADMIN_PASSWORD };
      const { status, body } = await broker.call("/manager/login", credentials);
      if (status !== 200) throw new Error(`login: ${status} ${body.code}`);
      return String(body.token);
    };
    this.#managerTokens.push(await login());
    const ended = await login();
    await ok(broker.call("/manager/logout", {}, bearer(ended)));
    this.#endedTokens.push(ended);
  }

  async #verifyChannels(t: Test, broker: Broker): Promise<void> {
    const id = this.#brokenOffChannel;
    if (id !== undefined) {
      const { status } = await createRoom(broker, id);
      t.ok(status === 200 || status === 409, "a broken-off creation repeats");
      this.#brokenOffChannel = undefined;
      this.#channels.push(id);
    }
    const newest = this.#channels.at(-1);
    if (newest !== undefined) t.equal((await createRoom(broker, newest)).status, 409);
    const held = await memberships(broker, this.#channels.slice(-500));
    t.notOk(held.includes(false), "every channel has the member it was given");
  }

  async #verifyManagers(t: Test, broker: Broker): Promise<void> {
    const statusWith = async (token: string) =>
      (await broker.call("/migrate/result", undefined, bearer(token))).status;
    for (const token of this.#managerTokens.slice(-10))
      t.equal(await statusWith(token), 200, "an access token holds");
    for (const token of this.#endedTokens.slice(-10))
      t.equal(await statusWith(token), 401, "an ended token stays ended");
  }
}

/** Registers a user's token. Throws unless it is answered with 200. */
export async function setToken(broker: Broker, uid: string, token: string): Promise<void> {
  await ok(call(broker, "/user/token", { uid, token, device_flag: 0 }));
}

/** A call with the static API token. */
export function call(broker: Broker, path: string, body?: unknown): Promise<ApiResponse> {
  return broker.call(path, body, { token: STATIC_TOKEN });
}

/** Throws unless the call is answered with 200. */
export async function ok(answer: Promise<ApiResponse>): Promise<void> {
  const { status, body } = await answer;
  if (status !== 200) throw new Error(`${status} ${body.code}`);
}

const bearer = (token: string) => ({ authorization: `Bearer ${token}` });

function createRoom(broker: Broker, id: string): Promise<ApiResponse> {
  const room = { channel_id: id, channel_type: GROUP_CHANNEL };
  return call(broker, "/channel", { ...room, subscribers: [WITNESS] });
}

async function isAccepted(broker: Broker, token: string): Promise<boolean> {
  const port = broker.clientPort;
  try {
    const carol = { uid: CAROL, port, token, timeoutMs: TIMEOUT_MS };
    const client = await connectNative(undefined, carol);
    await client.close();
    return true;
  } catch (error) {
    if (error instanceof NativeClientError && error.code === "unauthorized") return false;
    throw error;
  }
}

/** Whether the witness is a member, by what a connect with these channels is told. */
async function memberships(broker: Broker, ids: readonly string[]): Promise<readonly boolean[]> {
  const client = await connectNative(undefined, {
    uid: WITNESS,
    port: broker.clientPort,
    token: TOKEN,
    timeoutMs: TIMEOUT_MS,
    resume: ids.map((id) => ({
      channel: { id, type: GROUP_CHANNEL },
      lastSeq: 0,
    })),
  });
  await client.close();
  return client.connack.resume.map(({ status }) => status === "ok");
}

async function isBanned(broker: Broker): Promise<boolean> {
  const { status, body } = await call(broker, "/message/send", {
    ...HALL,
    from_uid: WITNESS,
    payload: Buffer.from('{"type":1,"content":"?"}').toString("base64"),
    header: { no_persist: 1 },
  });
  if (status === 200) return false;
  if (body.code === "channel_banned") return true;
  throw new Error(`${status} ${body.code}`);
}
