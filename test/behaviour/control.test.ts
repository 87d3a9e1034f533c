// Tests how a backend lists and ends the sessions of its users on any node.

import { t } from "../support/suite.ts";
import { endingOf, eventually, startWorld } from "./world.ts";

const world = await startWorld(t);

interface Sessions {
  readonly devices: readonly object[];
  readonly sessions: readonly {
    readonly session_id: string;
    readonly node_id: string;
    readonly device_flag: number;
  }[];
}

const devicesOf = async (uid: string): Promise<Sessions> =>
  (await world.call(`/user/devices?uid=${uid}`)).body;

// Covers [feature: user/devices]
t.test(
  "GET /user/devices lists a user's registered device types, and the user's live sessions on all nodes",
  async (t) => {
    const ann = world.name("ann");
    t.same(await devicesOf(ann), { devices: [], sessions: [] });
    const phone = await world.join(t, ann, {
      flag: 0,
      level: 1,
      deviceId: "p",
    });
    await world.join(t, ann, { flag: 1 });
    const { devices, sessions } = await devicesOf(ann);
    t.same(devices, [
      { device_flag: 0, device_level: 1, has_token: 1 },
      { device_flag: 1, device_level: 0, has_token: 1 },
    ]);
    const flags = sessions.map(({ device_flag }) => device_flag);
    t.same(flags.sort(), [0, 1]);
    t.match(
      sessions.find(({ device_flag }) => device_flag === 0),
      { session_id: String, node_id: String, device_id: "p" },
    );
    await phone.close();
    await eventually(async () => (await devicesOf(ann)).sessions.length === 1);
    await world.ok("/user/device_quit", { uid: ann, device_flag: -1 });
    await eventually(async () => (await devicesOf(ann)).sessions.length === 0);
    t.match(await devicesOf(ann), { devices: [{ has_token: 0 }, {}, {}] });
  },
);

// Covers [feature: conn/kick]
t.test(
  "POST /conn/kick ends one session as kicked, and the user's other sessions stay online",
  async (t) => {
    const ann = world.name("ann");
    const kicked = await world.join(t, ann, { flag: 1 });
    const { sessions } = await devicesOf(ann);
    const otherDevice = await world.join(t, ann, { flag: 2 });
    const [first] = sessions;
    const kick = { uid: ann, conn_id: first?.session_id };
    t.same(await world.ok("/conn/kick", { ...kick, conn_id: "none" }), {
      status: "ok",
    });
    await world.ok("/conn/kick", { ...kick, uid: world.name("bob") });
    await otherDevice.ping();
    await kicked.ping();
    await world.ok("/conn/kick", kick);
    t.equal(await endingOf(kicked), "kicked 4200");
    await world.ok("/conn/kick", kick);
    await otherDevice.ping();
    const again = await world.connect(t, ann, { flag: 1 });
    const connIds = new Map<string, number>();
    await eventually(async () => {
      const { body } = await world.call(`/connz?uid=${ann}&limit=100`);
      for (const { id, conn_id } of body.connections) connIds.set(id, conn_id);
      return connIds.size === 2;
    });
    const { sessions: bothSessions } = await devicesOf(ann);
    const session = bothSessions.find(({ device_flag }) => device_flag === 1);
    const connId = connIds.get(session?.session_id ?? "") ?? 0;
    await world.ok("/conn/kick", { uid: ann, conn_id: connId + 1 });
    await again.ping();
    await world.ok("/conn/kick", { uid: ann, conn_id: connId });
    t.equal(await endingOf(again), "kicked 4200", "the integer conn_id names the session too");
    await otherDevice.ping();
  },
);

// Covers [feature: connz; feature: varz; feature: health]
t.test("GET /connz, GET /varz and GET /health describe the node that responds", async (t) => {
  const ann = world.name("ann");
  await world.join(t, ann, { flag: 1, deviceId: "browser" });
  let connection: Record<string, unknown> | undefined;
  await eventually(async () => {
    const { body } = await world.call(`/connz?uid=${ann}`);
    [connection] = body.connections;
    return connection !== undefined;
  });
  const { sessions } = await devicesOf(ann);
  t.match(connection, {
    ...{ uid: ann, device: "web", device_id: "browser", device_level: 0 },
    ...{ id: sessions[0]?.session_id, node_id: sessions[0]?.node_id },
    ...{ ip: "127.0.0.1", pending_bytes: 0 },
  });
  t.ok(Number(connection?.uptime) < 600);
  const { body } = await world.call("/varz");
  t.match(body, { server_name: "Jindou", version: "test" });
  t.ok(body.connections >= body.sessions);
  const health = await world.call("/health");
  t.match(health, { status: 200, body: { status: "ok" } });
});
