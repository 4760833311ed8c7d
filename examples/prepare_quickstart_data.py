"""Build `examples/quickstart_data` from two Debian packages of freely licensed sounds.

The result is committed, so users of the examples never run this. To rebuild it:

    apt-get install sonic-pi-samples minetest-data
    python examples/prepare_quickstart_data.py --root /usr/share

Everything but the encoder is deterministic: a second run leaves the CSV files byte-identical. A file whose new
encoding decodes to the samples it already holds is left alone, because an Ogg stream carries a random serial number;
another libsndfile or libvorbis version may still change the audio bytes.
"""

import argparse
import csv
import io
import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np


SAMPLING_RATE = 16_000
MAX_SECONDS = 8.0
SEED = 0
# Two takes of one class that correlate more than this hold the same recording (see `same_recording`).
SAME_RECORDING = 0.85
SPLITS = ("train", "validation", "test")
COLUMNS = ("id", "file_name", "label", "take", "captions", "duration", "source", "author", "licence")
LICENCE_URLS = {
    "CC0 1.0": "https://creativecommons.org/publicdomain/zero/1.0/",
    "CC BY 3.0": "https://creativecommons.org/licenses/by/3.0/",
    "CC BY-SA 3.0": "https://creativecommons.org/licenses/by-sa/3.0/",
}

# label -> (takes, captions). A take is one string: the names of all files that come from one recording, or that
# strike the same instrument so alike that a model which saw one has seen the other.
CLASSES = {
    "footsteps on gravel": (
        [f"default_gravel_footstep.{i}" for i in (1, 2, 3, 4)],
        [
            "footsteps on gravel",
            "someone walks along a gravel path",
            "feet crunch over loose stones",
            "shoes grinding on pebbles",
            "a crunchy step on a stony track",
        ],
    ),
    "footsteps in snow": (
        [" ".join(f"default_snow_footstep.{i}" for i in (1, 2, 3, 4, 5))],
        [
            "footsteps in snow",
            "someone walks through fresh snow",
            "boots pressing into deep powder snow",
            "the soft squeak of packed snow underfoot",
            "a winter walk across a snowfield",
        ],
    ),
    "footsteps on sand": (
        [" ".join(f"default_sand_footstep.{i}" for i in (1, 2, 3))],
        [
            "footsteps on sand",
            "someone walks along a sandy beach",
            "bare feet shuffling over dry sand",
            "a grainy step on a dune",
            "sand rubbing under a sole",
        ],
    ),
    "footsteps on grass": (
        [" ".join(f"default_grass_footstep.{i}" for i in (1, 2, 3))],
        [
            "footsteps on grass",
            "someone walks across a lawn",
            "feet brushing through a meadow",
            "blades of grass rustling under shoes",
            "a quiet step on green turf",
        ],
    ),
    "footsteps on dirt": (
        ["default_dirt_footstep.1", "default_dirt_footstep.2"],
        [
            "footsteps on dirt",
            "someone walks on bare earth",
            "a step on dusty soil",
            "feet treading on a muddy trail",
            "dull steps over the ground",
        ],
    ),
    "footsteps on a hard floor": (
        [
            "default_hard_footstep.1 default_hard_footstep.2 default_hard_footstep.3",
            "default_wood_footstep.1 default_wood_footstep.2",
        ],
        [
            "footsteps on a hard floor",
            "someone walks on wooden boards",
            "heels knocking on the floor",
            "a shoe taps on parquet",
            "steps in a hallway with a bare floor",
        ],
    ),
    "wading through water": (
        [f"default_water_footstep.{i}" for i in (1, 2, 3)],
        [
            "wading through water",
            "someone splashes through a puddle",
            "legs sloshing in a shallow pond",
            "splashing with the feet",
            "a person paddling in the shallows",
        ],
    ),
    "running stream": (
        [" ".join(f"env_sounds_water.{i}" for i in (1, 2, 3, 4))],
        [
            "a running stream",
            "a brook murmuring",
            "a river flowing over rocks",
            "water trickling down a creek",
            "the steady rush of a small waterfall",
        ],
    ),
    "bubbling lava": (
        ["env_sounds_lava.1 env_sounds_lava.2"],
        [
            "bubbling lava",
            "a volcano simmering",
            "thick magma gurgling",
            "molten rock boiling slowly",
            "deep bubbles bursting in a hot swamp",
        ],
    ),
    "ice cracking": (
        ["default_ice_dig.1 default_ice_dig.2 default_ice_dig.3", "default_ice_dug"],
        [
            "ice cracking",
            "a frozen lake splitting",
            "ice cubes crushed for a drink",
            "a block of ice is broken up",
            "a pick chips at a glacier",
        ],
    ),
    "glass breaking": (
        ["default_break_glass.1", "default_break_glass.2", "default_break_glass.3"],
        [
            "glass breaking",
            "a window pane shatters",
            "a bottle smashed to pieces",
            "shards falling after a smash",
            "a mirror being shattered",
        ],
    ),
    "tool breaking": (
        [" ".join(f"default_tool_breaks.{i}" for i in (1, 2, 3))],
        [
            "a tool breaking",
            "a wooden handle splinters",
            "a branch broken in half",
            "something brittle gives way and falls apart",
            "a pickaxe comes apart in the hand",
        ],
    ),
    "metal clanking": (
        ["default_dug_metal.1", "default_dug_metal.2", "default_dig_metal"],
        [
            "metal clanking",
            "a crowbar dropped on the floor",
            "a clang of sheet metal",
            "a hammer hits an anvil",
            "metallic clatter in a workshop",
        ],
    ),
    "campfire": (
        ["fire_small", "fire_large"],
        [
            "a campfire burning",
            "flames crackling",
            "logs popping in a fireplace",
            "a bonfire blazing",
            "burning wood spits sparks",
        ],
    ),
    "furnace": (
        ["default_furnace_active"],
        [
            "a furnace running",
            "an oven roaring in a foundry",
            "a boiler in the cellar",
            "the heavy burner of a kiln",
            "a smelter at full heat",
        ],
    ),
    "steam hissing": (
        ["fire_extinguish_flame.1", "fire_extinguish_flame.2", "fire_extinguish_flame.3", "ambi_sauna"],
        [
            "steam hissing",
            "water sizzles on hot coals",
            "a flame is put out with a sizzle",
            "vapour rising from sauna stones",
            "a hot pan quenched under the tap",
        ],
    ),
    "burning fuse": (
        ["tnt_ignite", "tnt_gunpowder_burning"],
        [
            "a burning fuse",
            "gunpowder fizzing",
            "a sparkler being lit",
            "the fuse of a firework fizzles along",
            "a road flare spluttering",
        ],
    ),
    "explosion": (
        ["tnt_explode", "misc_cineboom"],
        [
            "an explosion",
            "dynamite goes off",
            "a bomb detonates",
            "a huge blast",
            "a thunderous boom",
        ],
    ),
    "door": (
        ["doors_door_open", "doors_door_close", "perc_door"],
        [
            "a door opens or closes",
            "a wooden door being shut",
            "someone slams the front door",
            "a door falling into its latch",
            "somebody enters the room through a door",
        ],
    ),
    "chest lid": (
        ["default_chest_open default_chest_close"],
        [
            "the lid of a chest",
            "a treasure chest creaks",
            "an old trunk is opened on rusty hinges",
            "a wooden box being closed",
            "someone looks into a coffer",
        ],
    ),
    "garden gate": (
        ["doors_fencegate_open", "doors_fencegate_close"],
        [
            "a garden gate",
            "the rattling latch of a fence gate",
            "someone unbolts the gate in the fence",
            "a farm gate swings to",
            "a picket gate being fastened",
        ],
    ),
    "steel door": (
        [
            "doors_steel_door_open doors_steel_door_close",
            "xpanes_steel_bar_door_open xpanes_steel_bar_door_close",
        ],
        [
            "a steel door",
            "a prison cell is locked",
            "iron bars slam shut",
            "a vault closing with a clunk",
            "the heavy metal door of a jail",
        ],
    ),
    "minecart on rails": (
        ["carts_cart_moving.1 carts_cart_moving.2 carts_cart_moving.3"],
        [
            "a minecart on rails",
            "a railway wagon going by",
            "a train on the track",
            "wheels clattering over rail joints",
            "a mine trolley in a tunnel",
        ],
    ),
    "kick drum": (
        [
            "drum_bass_hard drum_bass_soft",
            "drum_heavy_kick",
            *(f"bd_{n}" for n in ("808", "fat", "gas", "haus", "klub", "mehackit", "pure", "sone", "tek", "zome")),
        ],
        [
            "a kick drum",
            "a bass drum is hit",
            "a deep thump of a techno beat",
            "one low drum beat played with the pedal",
            "a punchy kick",
        ],
    ),
    "snare drum": (
        [
            "drum_snare_hard drum_snare_soft",
            *(f"sn_{n}" for n in ("dolf", "dub", "generic", "zome")),
            *(f"elec_{n}" for n in ("snare", "hi_snare", "lo_snare", "mid_snare")),
        ],
        [
            "a snare drum",
            "a single snare hit",
            "a sharp backbeat",
            "a rimshot with rattling wires",
            "the drummer strikes the snare",
        ],
    ),
    "tom-tom": (
        [f"drum_tom_{n}_hard drum_tom_{n}_soft" for n in ("hi", "mid", "lo")],
        [
            "a tom-tom",
            "a floor tom is played",
            "a round boom of the toms",
            "a tom fill on a drum kit",
            "a rack tom struck with a stick",
        ],
    ),
    "hi-hat": (
        ["drum_cymbal_closed", "drum_cymbal_pedal"],
        [
            "a closed hi-hat",
            "a short hi-hat tick",
            "the hats are closed with the foot",
            "a tight chick of the hi-hat",
            "a dry tick of the hats",
        ],
    ),
    "cymbal crash": (
        [
            "drum_cymbal_open",
            "drum_cymbal_hard drum_cymbal_soft",
            "drum_splash_hard drum_splash_soft",
            "elec_cymbal",
        ],
        [
            "a cymbal crash",
            "a splash cymbal shimmers",
            "a brassy crash",
            "cymbals being struck",
            "a ride cymbal fading slowly",
        ],
    ),
    "drum roll": (
        ["drum_roll"],
        [
            "a drum roll",
            "a long roll before the circus act",
            "rapid drumming that builds suspense",
            "a marching drummer rolls the sticks",
            "a military tattoo",
        ],
    ),
    "cowbell": (
        ["drum_cowbell"],
        [
            "a cowbell",
            "a cowbell is played",
            "hollow latin percussion",
            "the clonk of a salsa band",
            "an agogo is hit",
        ],
    ),
    "drum loop": (
        [f"loop_{n}" for n in ("breakbeat", "compus", "garzul", "industrial", "mika", "safari")],
        [
            "a drum loop",
            "a rhythmic beat with drums and percussion",
            "a funky breakbeat",
            "a drum machine plays a pattern",
            "a club rhythm going round and round",
        ],
    ),
    "tabla ringing stroke": (
        [
            "tabla_na",
            "tabla_na_o",
            "tabla_na_s",
            "tabla_tas1",
            "tabla_tas2 tabla_tas3",
            "tabla_tun1 tabla_tun2 tabla_tun3",
        ],
        [
            "a ringing tabla stroke",
            "an indian hand drum rings at a clear pitch",
            "the treble tabla is tapped with a finger",
            "a resonant tabla note",
            "a bright high tabla tone",
        ],
    ),
    "tabla bass stroke": (
        ["tabla_ghe1 tabla_ghe4", "tabla_ghe2 tabla_ghe3 tabla_ghe7", "tabla_ghe5", "tabla_ghe6", "tabla_ghe8"],
        [
            "a deep bayan stroke",
            "the low indian drum with a bending pitch",
            "a gliding wobble of the left hand on the bayan",
            "a palm slides over the large tabla",
            "a booming note of an indian bass percussion pair",
        ],
    ),
    "bell": (
        ["perc_bell", "perc_bell2", "elec_chime"],
        [
            "a bell ringing",
            "a chime",
            "a bright ding that rings on",
            "a desk bell at the reception",
            "the clear ping of a small handbell",
        ],
    ),
    "finger snap": (
        ["perc_snap", "perc_snap2"],
        [
            "a finger snap",
            "someone snaps their fingers",
            "a click of the thumb and middle finger",
            "snapping fingers to the music",
            "a person calls the waiter with a finger click",
        ],
    ),
    "whoosh": (
        ["ambi_swoosh", "ambi_dark_woosh", "perc_swoosh"],
        [
            "a whoosh",
            "something swooshes past",
            "a gust of air",
            "a sword swinging through the air",
            "a fast object flies by",
        ],
    ),
    "guitar": (
        ["guit_e_fifths", "guit_e_slide", "guit_em9", "guit_harmonics"],
        [
            "a guitar",
            "an electric guitar is strummed",
            "plucked guitar strings",
            "a guitarist plays a chord",
            "a six-string riff",
        ],
    ),
    "piano": (
        ["ambi_piano"],
        [
            "a piano",
            "low piano keys held down",
            "a pianist plays a dark chord",
            "a grand piano in an empty hall",
            "a somber piano note",
        ],
    ),
    "choir": (
        ["ambi_choir"],
        [
            "a choir singing",
            "many voices hold a vowel",
            "a chorus of singers",
            "people singing in a church",
            "an angelic vocal harmony",
        ],
    ),
    "synthesizer bass": (
        [f"bass_{n}" for n in ("dnb_f", "drop_c", "hard_c", "thick_c", "trance_c", "woodsy_c")],
        [
            "a synthesizer bass",
            "a fat synth bassline",
            "the bass of electronic dance music",
            "a growling analog synthesizer",
            "a sustained low synth note",
        ],
    ),
    "robot": (
        ["mehackit_robot1 glitch_robot2", "mehackit_robot2 glitch_robot1", "mehackit_robot3"],
        [
            "a robot chattering",
            "an android speaking in garbled tones",
            "electronic chirps of a droid",
            "a talking machine from a science fiction film",
            "synthetic robotic babble",
        ],
    ),
    "record scratching": (
        ["vinyl_scratch", "vinyl_backspin", "vinyl_rewind"],
        [
            "a record being scratched",
            "a dj scratching on the turntable",
            "a turntable spun backwards",
            "a hip hop scratch",
            "an lp is rewound by hand",
        ],
    ),
    "vinyl crackle": (
        ["vinyl_hiss"],
        [
            "vinyl crackle",
            "surface noise of an old gramophone",
            "a needle in the run-out groove",
            "dust clicks and static on a worn disc",
            "a phonograph before the music starts",
        ],
    ),
    "crow": (
        ["misc_crow"],
        [
            "a crow cawing",
            "a raven croaks",
            "the harsh call of a black bird",
            "a rook calling from a tree",
            "caw of a crow in a field",
        ],
    ),
    "burp": (
        ["misc_burp"],
        [
            "a burp",
            "someone belches loudly",
            "a man burping after a meal",
            "a rude belch",
            "gas coming up from the stomach",
        ],
    ),
    "3d printer": (
        ["loop_3d_printer"],
        [
            "a 3d printer working",
            "stepper motors whirring",
            "the print head moves back and forth",
            "an office printer at work",
            "a plotter drawing",
        ],
    ),
    "singing wine glass": (
        ["ambi_glass_rub", "ambi_glass_hum"],
        [
            "a singing wine glass",
            "a wet finger rubs the rim of a goblet",
            "a glass harmonica",
            "a crystal goblet resonates",
            "the pure whine of a rubbed wineglass",
        ],
    ),
    "low drone": (
        ["ambi_drone", "loop_drone_g_97", "ambi_haunted_hum"],
        [
            "a low drone",
            "an ominous humming",
            "a continuous hum",
            "an eerie ambient pad",
            "a steady electrical buzz",
        ],
    ),
    "cash register": (
        ["perc_till"],
        [
            "a cash register",
            "the till goes ka-ching",
            "a shop drawer full of coins springs open",
            "a cashier takes the payment",
            "money is put into the till",
        ],
    ),
}

# Minetest: pattern of the name -> (mod, licence, author asked for by the licence, page of the recording).
# Source: README.txt of each mod in the package, and /usr/share/doc/minetest-data/copyright where the README is
# silent. The packaged `carts` README names no sound; its upstream license.txt does, and that is what stands here.
FREESOUND = "https://freesound.org/people"
MINETEST = {
    r"carts_cart_moving": ("carts", "CC BY 3.0", "YleArkisto", f"{FREESOUND}/YleArkisto/sounds/253159/"),
    r"default_(gravel|grass|wood|dirt)_footstep": ("default", "CC BY-SA 3.0", "Mito551", ""),
    r"default_snow_footstep": ("default", "CC0 1.0", "", f"{FREESOUND}/Ryding/sounds/94337/"),
    r"default_sand_footstep": ("default", "CC0 1.0", "", f"{FREESOUND}/worthahep88/sounds/319224/"),
    r"default_hard_footstep": ("default", "CC BY 3.0", "Erdie", f"{FREESOUND}/Erdie/sounds/41579/"),
    r"default_water_footstep": ("default", "CC BY 3.0", "AGFX", f"{FREESOUND}/AGFX/packs/1253/"),
    r"default_ice_dig": ("default", "CC BY 3.0", "dheming", f"{FREESOUND}/dheming/sounds/268023/"),
    r"default_ice_dug": (
        "default",
        "CC BY 3.0",
        "Angel_Perez_Grandi",
        f"{FREESOUND}/Angel_Perez_Grandi/sounds/49190/",
    ),
    r"default_break_glass\.1": (
        "default",
        "CC BY 3.0",
        "cmusounddesign",
        f"{FREESOUND}/cmusounddesign/sounds/71947/",
    ),
    r"default_break_glass\.2": ("default", "CC BY 3.0", "Tomlija", f"{FREESOUND}/Tomlija/sounds/97669/"),
    r"default_break_glass\.3": ("default", "CC BY 3.0", "lsprice", f"{FREESOUND}/lsprice/sounds/88808/"),
    r"default_tool_breaks": ("default", "CC BY 3.0", "HerbertBoland", f"{FREESOUND}/HerbertBoland/sounds/33206/"),
    r"default_dug_metal": ("default", "CC0 1.0", "", "https://opengameart.org/users/qubodup"),
    r"default_dig_metal": ("default", "CC BY 3.0", "yadronoff", f"{FREESOUND}/yadronoff/sounds/320397/"),
    r"default_furnace_active": ("default", "CC0 1.0", "", f"{FREESOUND}/iankath/sounds/173991/"),
    r"default_chest": (
        "default",
        "CC BY 3.0",
        "Percy Duke, kingsamas, bulbastre (mixed by sofar)",
        f"{FREESOUND}/Percy%20Duke/sounds/23448/ {FREESOUND}/kingsamas/sounds/135576/ "
        f"{FREESOUND}/bulbastre/sounds/126887/ {FREESOUND}/Sevin7/sounds/269722/ "
        f"{FREESOUND}/Yoyodaman234/sounds/183541/",
    ),
    r"doors_door_open": ("doors", "CC BY 3.0", "CGEffex (modified by BlockMen)", ""),
    r"doors_door_close": ("doors", "CC BY 3.0", "bennstir", ""),
    r"doors_fencegate_open": ("doors", "CC0 1.0", "", f"{FREESOUND}/mhtaylor67/sounds/126041/"),
    r"doors_fencegate_close": (
        "doors",
        "CC BY 3.0",
        "BarkersPinhead, rivernile7",
        f"{FREESOUND}/BarkersPinhead/sounds/274807/ {FREESOUND}/rivernile7/sounds/249573/",
    ),
    r"doors_steel_door": ("doors", "CC BY 3.0", "HazMattt", f"{FREESOUND}/HazMattt/sounds/187283/"),
    r"xpanes_steel_bar_door": ("xpanes", "CC BY-SA 3.0", "TumeniNodes", ""),
    r"env_sounds_water": ("env_sounds", "CC0 1.0", "", f"{FREESOUND}/Yuval/sounds/197023/"),
    r"env_sounds_lava": ("env_sounds", "CC0 1.0", "", f"{FREESOUND}/Halion/sounds/17785/"),
    r"fire_extinguish_flame": ("fire", "CC BY-SA 3.0", "celeron55 (Perttu Ahola)", ""),
    r"fire_small": ("fire", "CC BY 3.0", "dobroide", f"{FREESOUND}/dobroide/sounds/4211/"),
    r"fire_large": ("fire", "CC BY 3.0", "Dynamicell", f"{FREESOUND}/Dynamicell/sounds/17548/"),
    r"tnt_explode": ("tnt", "CC0 1.0", "", "https://freesound.org/s/80401/"),
    r"tnt_ignite": ("tnt", "CC0 1.0", "", "https://freesound.org/s/316682/"),
    r"tnt_gunpowder_burning": ("tnt", "CC0 1.0", "", "https://freesound.org/s/348767/"),
}
SONIC_PI_FOLDER = "sonic-pi/samples"
MINETEST_FOLDER = "games/minetest/games/minetest_game/mods"


@dataclass(frozen=True)
class Original:
    """Where one recording comes from and under which terms.

    Attributes:
        path: The file, relative to the root that holds the packages.
        folder: Its folder in the data set.
        source: Package, path and page of the recording.
        author: The attribution its licence asks for; empty under CC0.
        licence: A key of `LICENCE_URLS`.
    """

    path: str
    folder: str
    source: str
    author: str
    licence: str


def find_original(name: str, links: dict[str, str]) -> Original:
    """Look up a recording by its name without extension; `links` maps Sonic Pi names to pages (`read_links`)."""
    for pattern, (mod, licence, author, link) in MINETEST.items():
        if re.match(pattern, name):
            path = f"{MINETEST_FOLDER}/{mod}/sounds/{name}.ogg"
            return Original(path, "minetest", f"minetest-data: {path} {link}".rstrip(), author, licence)
    path = f"{SONIC_PI_FOLDER}/{name}.flac"
    return Original(path, "cc0_sonic_pi", f"sonic-pi-samples: {path} {links[name.replace('_', '')]}", "", "CC0 1.0")


def read_links(readme: Path) -> dict[str, str]:
    """Freesound page of each Sonic Pi sample, by name without underscores (the README places them differently)."""
    rows = re.findall(r"`:(\w+)`\s*-\s*(https?://\S+)", readme.read_text(encoding="utf-8"))
    return {name.replace("_", ""): link for name, link in rows}


def load(path: Path) -> np.ndarray:
    """Read a file as 16 kHz mono `(samples,)`, without digital silence at its ends, at most 8 s long.

    Levels are kept, except that a peak above full scale (a lossy decoder may overshoot) is scaled down to 0.95.
    """
    import soundfile
    import soxr

    audio, rate = soundfile.read(path, dtype="float32", always_2d=True)
    audio = soxr.resample(audio.mean(axis=1), rate, SAMPLING_RATE)
    (sounding,) = np.nonzero(np.abs(audio) > 2**-15)
    if not sounding.size:
        raise ValueError(f"{path} is silent: the package holds something else than expected.")
    audio = audio[sounding[0] : sounding[-1] + 1][: int(MAX_SECONDS * SAMPLING_RATE)]
    peak = np.abs(audio).max()
    return audio * (0.95 / peak) if peak > 1.0 else audio


def same_recording(first: np.ndarray, second: np.ndarray) -> float:
    """Largest normalised cross-correlation, in [0, 1], of half-second pieces of one recording with the other.

    Both are high-passed at 250 Hz first: any two low thumps correlate.
    """
    first, second = sorted((_high_pass(first), _high_pass(second)), key=len)
    size = min(len(first), SAMPLING_RATE // 2)
    length = 1 << (len(second) + size).bit_length()
    spectrum = np.fft.rfft(second, length)
    energy = np.concatenate([[0.0], np.cumsum(second**2)])
    local = np.maximum(energy[size:] - energy[:-size], 1e-3 * energy[-1])
    best = 0.0
    for start in range(0, len(first) - size + 1, size):
        piece = first[start : start + size]
        if (piece**2).sum() < 1e-3 * (first**2).sum():
            continue
        products = np.fft.irfft(spectrum * np.conj(np.fft.rfft(piece, length)), length)[: len(local)]
        best = max(best, float((np.abs(products) / np.sqrt((piece**2).sum() * local)).max()))
    return best


def _high_pass(audio: np.ndarray, cutoff: float = 250.0) -> np.ndarray:
    spectrum = np.fft.rfft(audio.astype(np.float64))
    spectrum[np.fft.rfftfreq(len(audio), 1 / SAMPLING_RATE) < cutoff] = 0.0
    return np.fft.irfft(spectrum, len(audio))


def split_takes(label: str, takes: list[str]) -> dict[str, str]:
    """Deal the takes of a class to the splits.

    One take trains; of two or three, one tests; of four or more, about a quarter tests and 15 % validate, at least
    one each. The order is drawn from the seed and the label alone, so that adding a class moves no other.
    """
    order = sorted(takes)
    random.Random(f"{SEED}:{label}").shuffle(order)
    count = len(order)
    if count == 1:
        tests, validations = 0, 0
    elif count < 4:
        tests, validations = 1, 0
    else:
        tests, validations = round(0.25 * count), max(1, round(0.15 * count))
    return {
        take: "test" if i < tests else "validation" if i < tests + validations else "train"
        for i, take in enumerate(order)
    }


def check_takes(audios: dict[str, np.ndarray]) -> None:
    """Raise `ValueError` when two takes of one class hold the same recording."""
    for label, (takes, _) in CLASSES.items():
        names = [(name, take) for take in takes for name in take.split()]
        for i, (first, first_take) in enumerate(names):
            for second, second_take in names[i + 1 :]:
                if first_take != second_take:
                    score = same_recording(audios[first], audios[second])
                    if score > SAME_RECORDING:
                        raise ValueError(
                            f"{first} and {second} ({label}) correlate at {score:.2f}: make them one take in CLASSES."
                        )


def write_audio(path: Path, audio: np.ndarray) -> None:
    """Write Ogg Vorbis, unless the file there already decodes to the same samples."""
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, audio, SAMPLING_RATE, format="OGG", subtype="VORBIS", compression_level=0.3)
    buffer.seek(0)
    if path.exists():
        old, _ = soundfile.read(path, dtype="float32")
        new, _ = soundfile.read(buffer, dtype="float32")
        if np.array_equal(old, new):
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(buffer.getvalue())


def write_rows(output: Path, rows: dict[str, list[dict]]) -> None:
    """Write one CSV per split and the captions of each class."""
    for split in SPLITS:
        with open(output / f"{split}.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(sorted(rows[split], key=lambda row: row["id"]))
    captions = {label: captions for label, (_, captions) in CLASSES.items()}
    (output / "classes.json").write_text(json.dumps(captions, indent=2) + "\n", encoding="utf-8")


def build(root: Path, output: Path) -> dict[str, list[dict]]:
    """Build the data set in `output` from the packages under `root`; returns the rows of each split."""
    readme = root / SONIC_PI_FOLDER / "README.md"
    for needed, package in ((readme, "sonic-pi-samples"), (root / MINETEST_FOLDER, "minetest-data")):
        if not needed.exists():
            raise FileNotFoundError(f"{needed} is missing. Run `apt-get install {package}`, or pass another --root.")
    links = read_links(readme)
    names = [name for takes, _ in CLASSES.values() for take in takes for name in take.split()]
    originals = {name: find_original(name, links) for name in names}
    audios = {name: load(root / original.path) for name, original in originals.items()}
    check_takes(audios)
    rows = {split: [] for split in SPLITS}
    for label, (takes, captions) in CLASSES.items():
        for take, split in split_takes(label, takes).items():
            for name in take.split():
                original = originals[name]
                file_name = f"{original.folder}/{name}.ogg"
                write_audio(output / file_name, audios[name])
                values = (
                    name,
                    file_name,
                    label,
                    take.split()[0],
                    json.dumps(captions),
                    f"{len(audios[name]) / SAMPLING_RATE:.3f}",
                    original.source,
                    original.author,
                    original.licence,
                )
                rows[split].append(dict(zip(COLUMNS, values, strict=True)))
    write_rows(output, rows)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Build examples/quickstart_data from two Debian packages.")
    parser.add_argument("--root", type=Path, default=Path("/usr/share"), help="where the packages are unpacked")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "quickstart_data")
    arguments = parser.parse_args()
    rows = build(arguments.root, arguments.output)
    print({split: len(rows[split]) for split in SPLITS})


if __name__ == "__main__":
    main()
