// Loading and unloading the chosen model, by the routes that any client uses, where the server lets clients do so.

import { byId, say } from "./format.js";
import { adminKey, errorOf, headers, key } from "./stream.js";

export class Control {
  /** `refused(why, which, again)`: the server asks for a key; `again` is called when there is one. */
  constructor(state, refused) {
    Object.assign(this, { state, refused });
    for (const what of ["load", "unload"]) {
      byId(what).addEventListener("click", () => {
        const { name } = state.model;
        if (what === "load" || confirm(`Unload ${name}? Requests for it are refused then.`)) this.ask(what, name);
      });
    }
  }

  draw() {
    const { model, about } = this.state;
    byId("control").hidden = !model || about.control === "off";
    if (!model) return;
    const loaded = Boolean(model.example);
    say(byId("load"), `Load ${model.name}${loaded ? " again" : ""}`);
    say(byId("unload"), `Unload ${model.name}`);
    byId("unload").disabled = !loaded;
  }

  async ask(what, name) {
    const which = this.state.about.control === "admin" ? adminKey : key;
    say(byId("control-note"), `${what}ing ${name} ...`);
    let told = `${name}: ${what}ed`;
    try {
      const answer = await fetch(`v2/repository/models/${encodeURIComponent(name)}/${what}`, { method: "POST", headers: headers({}, which) });
      if (!answer.ok) told = await errorOf(answer);
      if (answer.status === 401) this.refused(told, which, () => this.ask(what, name));
    } catch (error) {
      told = `the server was not reached: ${error.message}`;
    }
    say(byId("control-note"), told);
  }
}
