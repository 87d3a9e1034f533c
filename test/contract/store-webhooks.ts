// Contract of `WebhookStore` in `broker/webhook-ports.ts`, which every driver runs.

import type { Test } from "tap";
import type { FixtureFactory } from "./store-fixture.ts";

export async function webhooks(t: Test, createFixture: FixtureFactory): Promise<void> {
  const fixture = await createFixture(t);

  t.test("webhook settings change only if the caller passes their current version", async (t) => {
    const { store } = fixture;
    t.strictSame(await store.webhooks(), [], "a new store has no webhooks");
    t.equal(await store.putWebhook("b", "{}", 0, 2), "done");
    t.equal(await store.putWebhook("b", "{}", 0, 2), "changed", "the id is taken");
    t.equal(await store.putWebhook("a", '{"x":"ü 1"}', 0, 2), "done");
    t.equal(await store.putWebhook("c", "{}", 0, 2), "full");
    t.equal(
      await store.putWebhook("b", '{"y":1}', 1, 2),
      "done",
      "a change succeeds even if the number of webhooks is at the limit",
    );
    t.equal(await store.putWebhook("b", "{}", 1, 2), "changed");
    const expected = [
      { id: "a", version: 1, settings: '{"x":"ü 1"}' },
      { id: "b", version: 2, settings: '{"y":1}' },
    ];
    t.strictSame(await store.webhooks(), expected);
    await fixture.reopen();
    t.strictSame(await fixture.store.webhooks(), expected, "unchanged after a restart");
  });

  t.test(
    "a removed webhook loses its stored states, and no further states are stored for it",
    async (t) => {
      const { store } = fixture;
      const acquire = (ids: readonly string[]) =>
        fixture.store.acquireWebhookLeases(ids, "me", 60_000);
      const leases = await acquire(["a", "b", "unknown"]);
      const [lease, other, none] = leases;
      if (lease === undefined) throw new Error("the lease is held by another owner");
      t.match([lease.name, other?.name], ["webhook:a", "webhook:b"], "in order");
      t.equal(none, undefined, "an unknown webhook has no lease");
      t.strictSame(
        await acquire(["a", "b", "unknown"]),
        leases,
        "leases can be renewed by their owner",
      );
      const target = { webhookId: "a", token: lease.token };
      const saved = await store.saveWebhookTexts(target, {
        state: new Map([
          ["live/1", "one"],
          ["live/2", "two"],
        ]),
        parked: new Map([["event", "parked"]]),
      });
      t.ok(saved);
      await store.saveWebhookTexts(target, { state: new Map([["live/1", undefined]]) });
      const texts = async (kind: "state" | "parked") => [
        ...(await fixture.store.webhookTexts("a", kind)),
      ];
      t.strictSame(await texts("state"), [["live/2", "two"]]);
      t.strictSame(await texts("parked"), [["event", "parked"]]);
      const change = (text: string | undefined) =>
        store.saveWebhookTexts({ webhookId: "a" }, { parked: new Map([["event", text]]) });
      await change("again");
      t.strictSame(await texts("parked"), [["event", "again"]], "a call needs no lease");
      await change(undefined);
      await change("late");
      t.strictSame(await texts("parked"), [], "a call without a lease adds no text");
      await store.addWebhookAttempts("a", ["1"], 3);
      await fixture.reopen();
      t.strictSame(await texts("state"), [["live/2", "two"]], "the same after a restart");
      const [again] = await acquire(["a"]);
      t.ok(await fixture.store.removeWebhook("a"));
      t.notOk(await fixture.store.removeWebhook("a"), "the webhook and its texts are removed");
      t.strictSame(await texts("state"), []);
      const late = { state: new Map([["live/2", "late"]]) };
      t.notOk(
        again && (await fixture.store.saveWebhookTexts({ ...target, token: again.token }, late)),
        "the lease is void",
      );
      t.strictSame(await texts("state"), []);
    },
  );

  t.test("nothing is stored for a webhook that was removed", async (t) => {
    const { store } = fixture;
    const acquire = () => store.acquireWebhookLeases(["late"], "me", 60_000);
    await store.putWebhook("late", "{}", 0, 9);
    const [lease] = await acquire();
    await store.removeWebhook("late");
    t.strictSame(await acquire(), [undefined], "no lease");
    const parked = new Map([["event", "parked"]]);
    const state = new Map([["live/1", "one"]]);
    t.notOk(await store.saveWebhookTexts({ webhookId: "late" }, { parked }), "no failure");
    const target = { webhookId: "late", token: lease?.token ?? 0 };
    t.notOk(await store.saveWebhookTexts(target, { state }), "no state");
    await store.addWebhookAttempts("late", ["1"], 3);
    t.strictSame(await store.webhookAttempts("late", 3), [], "no attempts");
    await store.putWebhook("late", "{}", 0, 9);
    for (const kind of ["state", "parked"] as const)
      t.equal((await store.webhookTexts("late", kind)).size, 0, kind);
    await store.removeWebhook("late");
  });

  t.test("only the newest delivery attempts of a webhook are kept", async (t) => {
    const { store } = fixture;
    await store.addWebhookAttempts("b", ["1", "2"], 3);
    await store.addWebhookAttempts("b", ["3", "4"], 3);
    t.strictSame(await store.webhookAttempts("b", 10), ["4", "3", "2"], "newest first");
    t.strictSame(await store.webhookAttempts("b", 1), ["4"]);
    t.strictSame(await store.webhookAttempts("unknown", 1), []);
  });
}
