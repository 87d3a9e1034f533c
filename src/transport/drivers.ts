// Chooses the transport's driver. `auto` means uWebSockets.js if it loads, otherwise the portable
// driver. Keeps no state.

import type { Driver } from "./driver.ts";
import { loadUws } from "./uws/driver.ts";
import { thisMachine, whyItDoesNotLoad } from "./uws/library.ts";

interface DriverSettings {
  readonly driver: "auto" | "uws" | "portable";
  readonly maxHeadBytes: number;
}

interface DriverChoice {
  readonly driver: Driver;
  /**
   * Warning for the operator if `auto` had to choose the portable driver, otherwise `undefined`.
   */
  readonly warning: string | undefined;
}

/** The factors in this text were measured with `npm run bench -- http fanout --portable`. */
const COST =
  "The portable transport is used instead, which needs up to twice as much CPU time for a message to a group of 1,000 clients, and about 2.5 times as much for a POST that stores a message.";

/**
 * Loads the driver. If `driver` is `uws` and uWebSockets.js does not load, rejects with an
 * explanation for the operator.
 */
export async function chooseDriver({
  driver,
  maxHeadBytes,
}: DriverSettings): Promise<DriverChoice> {
  if (driver === "portable")
    return { driver: await loadPortable(maxHeadBytes), warning: undefined };
  try {
    return { driver: await loadUws(maxHeadBytes), warning: undefined };
  } catch (error) {
    const explanation = whyItDoesNotLoad(error, thisMachine());
    if (driver === "uws") throw new Error(explanation, { cause: error });
    return { driver: await loadPortable(maxHeadBytes), warning: `${explanation}. ${COST}` };
  }
}

export async function loadPortable(maxHeadBytes: number): Promise<Driver> {
  const { createPortableDriver } = await import("./portable/driver.ts");
  return createPortableDriver(maxHeadBytes);
}
