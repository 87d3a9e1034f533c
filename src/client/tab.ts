// Entry `jindou-client/tab`: a device id for each browser tab. Bundles that do not import this
// entry do not contain its code.

import { randomId } from "./options.ts";

interface Locks {
  request(
    name: string,
    options: { readonly ifAvailable: true },
    callback: (lock: unknown) => unknown,
  ): Promise<unknown>;
}

interface Browser {
  readonly sessionStorage?: Pick<Storage, "getItem" | "setItem">;
  readonly navigator?: { readonly locks?: Locks };
}

interface Storage {
  getItem(key: string): string | null;
  setItem(key: string, value: string): void;
}

/**
 * Returns a `deviceId` that belongs only to this tab. The id survives a reload. A duplicated tab
 * gets a different id. Without Web Locks (in an insecure context) or without `sessionStorage`, each
 * call returns a new id. `key` is the name under which the id is stored.
 */
export async function tabDeviceId(key = "jindou-device"): Promise<string> {
  const { sessionStorage, navigator } = globalThis as Browser;
  const locks = navigator?.locks;
  if (locks === undefined || sessionStorage === undefined) return randomId();
  const stored = sessionStorage.getItem(key);
  if (stored !== null && (await holdLock(locks, `${key} ${stored}`))) return stored;
  const id = randomId();
  sessionStorage.setItem(key, id);
  await holdLock(locks, `${key} ${id}`);
  return id;
}

/**
 * Acquires a lock and holds it for the lifetime of the page. Resolves to false if another page
 * holds the lock.
 */
function holdLock(locks: Locks, name: string): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const held = locks.request(name, { ifAvailable: true }, (lock) => {
      resolve(lock !== null);
      return lock === null ? undefined : new Promise(() => undefined);
    });
    held.catch(reject);
  });
}
