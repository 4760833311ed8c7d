"""Build `examples/quickstart_data` from two Debian packages of freely licensed sounds.

The result is committed, so users of the examples never run this. To rebuild it:

    apt-get install sonic-pi-samples minetest-data
    python examples/prepare_quickstart_data.py --root /usr/share

It needs soundfile 0.13 or newer, which can set the quality of the encoder. Everything but the encoder is
deterministic: a second run leaves the CSV files byte-identical. A file whose new encoding decodes to the samples it
already holds is left alone, because an Ogg stream carries a random serial number; another libsndfile or libvorbis
version may still change the audio bytes.
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
SPLITS = ("train", "test")
COLUMNS = ("id", "file_name", "label", "take", "captions", "duration", "source", "author", "licence")
LICENCE_URLS = {
    "CC0 1.0": "https://creativecommons.org/publicdomain/zero/1.0/",
    "CC BY 3.0": "https://creativecommons.org/licenses/by/3.0/",
    "CC BY-SA 3.0": "https://creativecommons.org/licenses/by-sa/3.0/",
}

# label -> (series, captions). A series is one string: the takes of one sound by one maker, as the package names them.
# "+" joins the files that hold one recording, which are one take. A sound of which there is one take is a series of its
# own.
CLASSES = {
    "footsteps on gravel": (
        [" ".join(f"default_gravel_footstep.{i}" for i in (1, 2, 3, 4))],
        [
            "footsteps on gravel",
            "someone walks on crunching gravel",
            "feet crunch over loose gravel stones",
            "shoes grinding on pebbles and gravel",
            "a crunchy step on a pebble path",
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
            "a grainy step on a sand dune",
            "sand rubbing under a sole",
        ],
    ),
    "footsteps on grass": (
        ["+".join(f"default_grass_footstep.{i}" for i in (1, 2, 3))],
        [
            "footsteps on grass",
            "someone walks across a grassy lawn",
            "feet brushing through meadow grass",
            "blades of grass rustling under shoes",
            "a quiet step on a lawn",
        ],
    ),
    "footsteps on dirt": (
        ["default_dirt_footstep.1 default_dirt_footstep.2"],
        [
            "footsteps on dirt",
            "someone walks on a dirt road",
            "a step on dusty soil",
            "feet treading on a muddy dirt trail",
            "dull steps on earthy soil",
        ],
    ),
    "footsteps on a hard floor": (
        [
            "default_hard_footstep.1+default_hard_footstep.2 default_hard_footstep.3",
            "default_wood_footstep.1 default_wood_footstep.2",
        ],
        [
            "footsteps on a hard floor",
            "someone walks on wooden floorboards",
            "heels knocking on the floor",
            "a shoe tapping the parquet floor",
            "footsteps in a hallway with a bare floor",
        ],
    ),
    "wading through water": (
        [" ".join(f"default_water_footstep.{i}" for i in (1, 2, 3))],
        [
            "wading through water",
            "someone splashes through a puddle",
            "legs wading and sloshing in shallow water",
            "splashing in a puddle with the feet",
            "a person wading and splashing in a pond",
        ],
    ),
    "running stream": (
        [" ".join(f"env_sounds_water.{i}" for i in (1, 2, 3, 4))],
        [
            "a running stream",
            "a stream murmuring in the woods",
            "a river flowing over rocks",
            "a small creek flowing",
            "the steady rush of a mountain stream",
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
            "the ice of a frozen lake splitting",
            "ice cubes crushed for a drink",
            "a block of ice is broken up",
            "a pick chips at hard ice",
        ],
    ),
    "glass breaking": (
        [f"default_break_glass.{i}" for i in (1, 2, 3)],
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
            "a wooden tool handle splinters",
            "a wooden stick broken in half",
            "a broken tool falls apart",
            "a pickaxe handle snaps",
        ],
    ),
    "metal clanking": (
        ["default_dug_metal.1 default_dug_metal.2", "default_dig_metal"],
        [
            "metal clanking",
            "a metal pipe clanks",
            "a clang of sheet metal",
            "a hammer clanging on metal",
            "metallic clatter in a workshop",
        ],
    ),
    "chopping wood": (
        ["+".join(f"default_dig_choppy.{i}" for i in (1, 2, 3))],
        [
            "chopping wood",
            "an axe chops a log",
            "a lumberjack fells a tree with an axe",
            "a hatchet splits firewood",
            "the blow of an axe on a tree trunk",
        ],
    ),
    "pickaxe on rock": (
        ["+".join(f"default_dig_cracky.{i}" for i in (1, 2, 3))],
        [
            "a pickaxe on rock",
            "a miner strikes rock with a pickaxe",
            "hewing stone in a quarry",
            "a chisel hits solid rock",
            "mining stone with a pickaxe",
        ],
    ),
    "digging with a shovel": (
        [" ".join(f"default_gravel_{name}" for name in ("dig.1", "dig.2", "dug.1", "dug.2", "dug.3"))],
        [
            "digging with a shovel",
            "a shovel scoops up rubble",
            "someone digs a hole with a spade",
            "a spade is pushed into the ground",
            "shovelling a heap of rubble",
        ],
    ),
    "footsteps on metal": (
        [" ".join(f"default_metal_footstep.{i}" for i in (1, 2, 3))],
        [
            "footsteps on metal",
            "someone walks over a steel grating",
            "boots on the iron deck of a ship",
            "climbing a metal staircase",
            "a step on a metal gangway",
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
            "a roaring foundry furnace",
            "an industrial furnace",
            "the burner of a smelting furnace",
            "a smelter at full heat",
        ],
    ),
    "steam hissing": (
        [" ".join(f"fire_extinguish_flame.{i}" for i in (1, 2, 3)), "ambi_sauna"],
        [
            "steam hissing",
            "hot steam escapes with a hiss",
            "water sizzles and turns to steam",
            "vapour hissing from sauna stones",
            "a sizzling cloud of steam",
        ],
    ),
    "burning fuse": (
        ["tnt_ignite", "tnt_gunpowder_burning"],
        [
            "a burning fuse",
            "a fizzing gunpowder fuse",
            "a sparkler fuse being lit",
            "the fuse of a firework fizzles along",
            "a lit fuse spluttering",
        ],
    ),
    "explosion": (
        ["tnt_explode", "misc_cineboom"],
        [
            "an explosion",
            "dynamite explodes",
            "a bomb detonates",
            "a huge blast",
            "a thunderous explosion",
        ],
    ),
    "door": (
        ["doors_door_open", "doors_door_close", "perc_door"],
        [
            "a wooden door opens or closes",
            "a wooden door being shut",
            "someone slams the front door of a house",
            "a door falling into its latch",
            "somebody opens the door to a room",
        ],
    ),
    "chest lid": (
        ["default_chest_open", "default_chest_close"],
        [
            "the lid of a treasure chest",
            "a treasure chest creaks",
            "an old chest is opened",
            "a chest lid being closed",
            "someone looks into a treasure chest",
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
            "doors_steel_door_open",
            "doors_steel_door_close",
            "xpanes_steel_bar_door_open",
            "xpanes_steel_bar_door_close",
        ],
        [
            "a heavy steel prison door",
            "a prison cell is locked",
            "the iron bars of a jail slam shut",
            "a steel vault closing",
            "the metal door of a jail cell",
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
            "a bass drum kick",
            "a deep thump of the kick drum",
            "one low kick drum beat played with the pedal",
            "a punchy bass kick",
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
            "a sharp snare on the backbeat",
            "a rimshot on a snare with rattling wires",
            "the drummer strikes the snare",
        ],
    ),
    "tom-tom": (
        [f"drum_tom_{n}_hard drum_tom_{n}_soft" for n in ("hi", "mid", "lo")],
        [
            "a tom-tom",
            "a floor tom is played",
            "a round boom of the toms",
            "a tom-tom fill",
            "a rack tom struck with a stick",
        ],
    ),
    "hi-hat": (
        ["drum_cymbal_closed", "drum_cymbal_pedal"],
        [
            "a closed hi-hat",
            "a short hi-hat tick",
            "the hi-hats are closed with the foot",
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
            "a crash cymbal fading slowly",
            "cymbals being struck",
            "a brass cymbal is hit",
        ],
    ),
    "drum roll": (
        ["drum_roll"],
        [
            "a drum roll",
            "a long drum roll before the circus act",
            "a suspenseful drum roll",
            "a marching drummer plays a roll",
            "a rolling drum in a military parade",
        ],
    ),
    "cowbell": (
        ["drum_cowbell"],
        [
            "a cowbell",
            "a cowbell is played",
            "a hollow metal cowbell",
            "the cowbell of a salsa band",
            "a cowbell is struck with a stick",
        ],
    ),
    "drum loop": (
        [f"loop_{n}" for n in ("breakbeat", "compus", "garzul", "industrial", "mika", "safari")],
        [
            "a drum loop",
            "a rhythm loop with percussion",
            "a funky breakbeat loop",
            "a drum machine plays a groove",
            "a looping dance beat",
        ],
    ),
    "tabla ringing stroke": (
        [
            "tabla_na tabla_na_o tabla_na_s",
            "tabla_tas1 tabla_tas2 tabla_tas3",
            "tabla_tun1+tabla_tun2+tabla_tun3",
        ],
        [
            "a ringing tabla stroke",
            "an indian tabla rings at a clear pitch",
            "the treble tabla is tapped with a finger",
            "a resonant tabla note",
            "a bright high tabla tone",
        ],
    ),
    "tabla bass stroke": (
        [" ".join(f"tabla_ghe{i}" for i in range(1, 9))],
        [
            "a deep bayan drum stroke",
            "a low bayan drum with a bending pitch",
            "a gliding wobble of the bayan",
            "a palm slides over the bayan",
            "a booming bayan note",
        ],
    ),
    "bell": (
        ["perc_bell", "perc_bell2", "elec_chime"],
        [
            "a bell ringing",
            "a chiming bell",
            "a bright ding of a bell",
            "a desk bell at the reception",
            "the clear ping of a small bell",
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
            "something whooshes past",
            "a whooshing gust of air",
            "a sword whooshing through the air",
            "a fast object flies by with a whoosh",
        ],
    ),
    "guitar": (
        ["guit_e_fifths", "guit_e_slide", "guit_em9", "guit_harmonics"],
        [
            "a guitar",
            "an electric guitar is strummed",
            "plucked guitar strings",
            "a guitarist plays a chord",
            "a six-string guitar riff",
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
            "many voices of a choir",
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
        ["mehackit_robot1+glitch_robot2 mehackit_robot2+glitch_robot1 mehackit_robot3"],
        [
            "a robot chattering",
            "an android speaking in garbled tones",
            "the robotic chirps of a droid",
            "a talking robot from a science fiction film",
            "synthetic robotic babble",
        ],
    ),
    "record scratching": (
        ["vinyl_scratch", "vinyl_backspin", "vinyl_rewind"],
        [
            "a dj scratching a record",
            "a dj scratches on the turntable",
            "a dj spins the turntable backwards",
            "a hip hop dj scratch",
            "a turntable is rewound by the dj",
        ],
    ),
    "vinyl crackle": (
        ["vinyl_hiss"],
        [
            "vinyl crackle",
            "the surface crackle of an old gramophone",
            "crackling dust in the groove of a vinyl disc",
            "soft crackle and static of worn vinyl",
            "an old gramophone before the music starts",
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
            "stepper motors of a printer whirring",
            "the print head moves back and forth",
            "an office printer at work",
            "a printer printing a plastic part",
        ],
    ),
    "singing wine glass": (
        ["ambi_glass_rub", "ambi_glass_hum"],
        [
            "a singing wine glass",
            "a wet finger rubs the rim of a wine glass",
            "a glass harmonica",
            "a crystal wine glass resonates",
            "the pure whine of a rubbed wineglass",
        ],
    ),
    "low drone": (
        ["ambi_drone", "loop_drone_g_97", "ambi_haunted_hum"],
        [
            "a low drone",
            "an ominous droning hum",
            "a continuous hum",
            "a dark humming drone",
            "a steady electrical humming",
        ],
    ),
    "cash register": (
        ["perc_till"],
        [
            "a cash register",
            "the cash register goes ka-ching",
            "a cash drawer full of coins springs open",
            "a cashier opens the till",
            "money is put into the cash register",
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
    r"default_dig_choppy": ("default", "CC0 1.0", "", f"{FREESOUND}/Sheyvan/sounds/476113/"),
    r"default_dig_cracky": ("default", "CC BY 3.0", "Benboncan", f"{FREESOUND}/Benboncan/sounds/71823/"),
    r"default_gravel_(dig|dug)": ("default", "CC0 1.0", "", f"{FREESOUND}/lolamadeus/sounds/179341/"),
    r"default_metal_footstep": ("default", "CC0 1.0", "", f"{FREESOUND}/mypantsfelldown/sounds/398937/"),
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
FOLDERS = {
    "cc0_sonic_pi": (
        "Sounds of Sonic Pi",
        "Samples shipped with Sonic Pi (Debian package sonic-pi-samples), placed in the public domain by their makers.",
    ),
    "minetest": (
        "Sounds of Minetest Game",
        "Sounds of Minetest Game (Debian package minetest-data). Each file stays under the licence of its original.",
    ),
}
CHANGES = (
    "Changes: every file was converted to 16 kHz mono Ogg Vorbis; digital silence at the ends was removed, recordings\n"
    "over 8 s were cut to their first 8 s, and those whose peak exceeded full scale were turned down."
)
README = """# Quickstart sounds

{files} real sounds ({minutes:.1f} minutes) in {classes} classes that a person can name by ear, with five captions a
class: enough to train an audio-text model from scratch in minutes, and small enough to live in the repository.

{sizes}

`train.csv` and `test.csv` load without decoding any audio:

```python
from datasets import load_dataset

folder = "examples/quickstart_data"
data = load_dataset("csv", data_files={{split: f"{{folder}}/{{split}}.csv" for split in ("train", "test")}})
```

| column | content |
| --- | --- |
| `id` | name of the sound, unique |
| `file_name` | 16 kHz mono Ogg Vorbis, relative to this folder |
| `label` | class |
| `take` | performance the file holds; files of one take are copies or cuts of it |
| `captions` | JSON list of the five captions of the class (also in `classes.json`) |
| `duration` | seconds |
| `source` | package, path in it, page of the recording where the package names one |
| `author` | attribution the licence asks for; empty under CC0 |
| `licence` | CC0 1.0, CC BY 3.0 or CC BY-SA 3.0 |

## Splits

A *take* is one performance of a sound: a step, a stroke, a blow. Takes of one sound by one maker, as the packages name them
(`default_snow_footstep.1` to `.5`, the hard and the soft stroke of a tom) form a series; of each series one take in four
tests, or one of two or three. A seeded shuffle decides which. Copies and files that correlate with one another are one
take, and a take never spans two splits; the script verifies by cross-correlation that different takes hold different
audio. Sounds without a series (most loops, doors, synthesizers) only train, so scores cover the classes with a test take.

What this measures is whether the model knows a sound again in a take it has not heard, and in mixtures it has not heard.
The takes of a series share a maker, and most an instrument and a room, so it says little about the sounds of the world at
large. Several minutes of audio are no benchmark.

## Classes (takes per split)

{table}

## Levels and bandwidth

Levels are those of the originals, so steps on grass (peak below 0.13), the minecart (below 0.22) and the gunpowder
fuse (0.18) are quiet. `tnt_gunpowder_burning` was recorded at 8 kHz and `doors_door_*`, `env_sounds_lava.*`
and two footsteps at 22 kHz. Being lossy, a few decoded files exceed full scale by up to 6 %.

## Licences

The CC0 sounds are in the public domain. The others ask for attribution, which the two `NOTICE` files give file by file
with the changes made; the CC BY-SA ones also ask that you share adaptations of the *sounds* alike. Captions, tables and
this description come under the licence of this repository. `minetest/` keeps the sounds that carry obligations apart,
so `cc0_sonic_pi/` can be used without any. The packaged minecart mod does not
name its sounds' maker; its upstream `license.txt` does (YleArkisto, CC BY 3.0), and that is what is stated here.

## Choice of sounds

Labels follow the names and descriptions the packages give, checked against spectrograms and not by listening tests.
Left out: sounds nobody could name, sounds too short or too alike to tell apart (placing, electronic clicks),
copies under another name, and loops made from a well-known commercial drum break.

## Rebuilding

```bash
apt-get install sonic-pi-samples minetest-data
python examples/prepare_quickstart_data.py --root /usr/share
```

The tables come out byte-identical; the audio depends on the version of the Vorbis encoder.
"""
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


def split_takes(label: str, series: list[str]) -> dict[str, str]:
    """Deal the takes of each series of a class to the splits: of n takes, one in four tests, and one of two or three.

    A single take trains. The order is drawn from the seed, the label and the series alone, so that adding one moves
    no other.
    """
    splits = {}
    for takes in series:
        order = sorted(takes.split())
        random.Random(f"{SEED}:{label}:{order[0]}").shuffle(order)
        tests = 0 if len(order) == 1 else max(1, len(order) // 4)
        splits |= {take: "test" if i < tests else "train" for i, take in enumerate(order)}
    return splits


def files_of(take: str) -> list[str]:
    """The names of the files of a take."""
    return take.split("+")


def check_takes(audios: dict[str, np.ndarray]) -> None:
    """Raise `ValueError` when two takes of one class hold the same recording."""
    for label, (series, _) in CLASSES.items():
        names = [(name, take) for takes in series for take in takes.split() for name in files_of(take)]
        for i, (first, first_take) in enumerate(names):
            for second, second_take in names[i + 1 :]:
                if first_take != second_take:
                    score = same_recording(audios[first], audios[second])
                    if score > SAME_RECORDING:
                        raise ValueError(
                            f"{first} and {second} ({label}) correlate at {score:.2f}: join them by + in CLASSES."
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


def write_notices(output: Path, rows: dict[str, list[dict]]) -> None:
    """Write one NOTICE per folder: who made each file, under which licence, and what was changed."""
    for folder, (title, origin) in FOLDERS.items():
        files = [row for split in SPLITS for row in rows[split] if row["file_name"].startswith(f"{folder}/")]
        licences = sorted({row["licence"] for row in files})
        lines = [title, "=" * len(title), "", origin, "", CHANGES, "", "Licences:"]
        lines += [f"  {licence}: {LICENCE_URLS[licence]}" for licence in licences]
        for licence in licences:
            lines += ["", licence, "-" * len(licence)]
            for row in sorted(files, key=lambda row: row["id"]):
                if row["licence"] == licence:
                    author = f"by {row['author']}; " if row["author"] else ""
                    lines.append(f"  {Path(row['file_name']).name}: {author}from {row['source']}")
        (output / folder / "NOTICE").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_readme(output: Path, rows: dict[str, list[dict]]) -> None:
    """Write the description of the data set, with its counts."""
    every = [row for split in SPLITS for row in rows[split]]
    minutes = sum(float(row["duration"]) for row in every) / 60
    sizes = ["| split | files | takes | classes |", "| --- | ---: | ---: | ---: |"]
    for split in SPLITS:
        takes, labels = ({row[key] for row in rows[split]} for key in ("take", "label"))
        sizes.append(f"| {split} | {len(rows[split])} | {len(takes)} | {len(labels)} |")
    table = ["| class | train | test | licences |", "| --- | ---: | ---: | --- |"]
    for label in sorted(CLASSES):
        counts = (len({row["take"] for row in rows[split] if row["label"] == label}) for split in SPLITS)
        licences = sorted({row["licence"] for row in every if row["label"] == label})
        table.append(f"| {label} | {' | '.join(map(str, counts))} | {', '.join(licences)} |")
    text = README.format(
        files=len(every), classes=len(CLASSES), minutes=minutes, sizes="\n".join(sizes), table="\n".join(table)
    )
    (output / "README.md").write_text(text, encoding="utf-8")


def build(root: Path, output: Path) -> dict[str, list[dict]]:
    """Build the data set in `output` from the packages under `root`; returns the rows of each split."""
    readme = root / SONIC_PI_FOLDER / "README.md"
    for needed, package in ((readme, "sonic-pi-samples"), (root / MINETEST_FOLDER, "minetest-data")):
        if not needed.exists():
            raise FileNotFoundError(f"{needed} is missing. Run `apt-get install {package}`, or pass another --root.")
    links = read_links(readme)
    takes = [take for series, _ in CLASSES.values() for line in series for take in line.split()]
    names = [name for take in takes for name in files_of(take)]
    originals = {name: find_original(name, links) for name in names}
    audios = {name: load(root / original.path) for name, original in originals.items()}
    check_takes(audios)
    rows = {split: [] for split in SPLITS}
    for label, (series, captions) in CLASSES.items():
        for take, split in split_takes(label, series).items():
            for name in files_of(take):
                original = originals[name]
                file_name = f"{original.folder}/{name}.ogg"
                write_audio(output / file_name, audios[name])
                values = (
                    name,
                    file_name,
                    label,
                    files_of(take)[0],
                    json.dumps(captions),
                    f"{len(audios[name]) / SAMPLING_RATE:.3f}",
                    original.source,
                    original.author,
                    original.licence,
                )
                rows[split].append(dict(zip(COLUMNS, values, strict=True)))
    write_rows(output, rows)
    write_notices(output, rows)
    write_readme(output, rows)
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
